"""Questions of reasoning-gym, mixed. The mix is the configuration's env.options:

    options = '{"datasets": {"chain_sum": {"weight": 2, "max_terms": 3}, "leg_counting": {}}, "instruction": "Be brief."}'

`python -c "import reasoning_gym.factory as f; print(*sorted(f.DATASETS))"` lists the data sets.
"""

from __future__ import annotations

import sys

from forebay import options, serve
from forebay.adapters.reasoning_gym import Mix

DATASETS = {
    "chain_sum": {"weight": 2, "min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "products": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "gcd": {"min_value": 1, "max_value": 12},
}


def main() -> None:
    config = {"datasets": DATASETS, **options()}
    try:
        mix = Mix(config.pop("datasets"), **config)
    except (TypeError, ValueError, AssertionError) as error:
        sys.exit(f"reasoning_gym: env.options do not describe a mix: {error}")
    serve(mix.make, name="reasoning_gym")


if __name__ == "__main__":
    main()
