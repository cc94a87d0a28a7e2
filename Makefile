# make demo   installs what is missing, builds, trains a real model on a slow environment, prints the report
# make test   the same set-up, then lint and every test
# make bench NAME=utilization   one benchmark (NAME=list names them)
.DEFAULT_GOAL := build
.PHONY: setup program build demo test lint bench fuzz clean

setup:
	@tools/setup.sh

program: setup
	@cmake --preset release >/dev/null
	@cmake --build --preset release --target forebay

build: program
	@cmake --build --preset release

demo: program
	build/release/bin/forebay train examples/quickstart.toml --run runs/demo --overwrite

test: build lint
	@ctest --preset release

lint: build
	@tools/lint.sh build/release

bench: build
	build/release/forebay-bench $(NAME) $(ARGS)

fuzz:
	@tools/setup.sh --fuzz
	@tools/fuzz.sh

clean:
	rm -rf build
