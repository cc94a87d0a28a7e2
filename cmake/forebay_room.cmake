# forebay_room(NAME DEPS rooms... LINK libs... TEST_LINK libs... [LABELS labels...])
#
# Declares the room in this folder: every .cc below it but tests and fuzz targets becomes the library
# forebay_NAME; every *_test.cc becomes a test program of its own, named ROOM.FILE in ctest. A test whose
# file name ends in _pjrt_test.cc gets the label "pjrt" (it loads the XLA plugin; the TSan run skips those).
function(forebay_room NAME)
  cmake_parse_arguments(ARG "" "" "DEPS;LINK;TEST_LINK;LABELS" ${ARGN})
  file(GLOB_RECURSE ALL_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  set(LIB_SOURCES ${ALL_SOURCES})
  list(FILTER LIB_SOURCES EXCLUDE REGEX "_(test|fuzz|testing)\\.cc$")
  set(TEST_SOURCES ${ALL_SOURCES})
  list(FILTER TEST_SOURCES INCLUDE REGEX "_test\\.cc$")
  set(TESTING_SOURCES ${ALL_SOURCES})
  list(FILTER TESTING_SOURCES INCLUDE REGEX "_testing\\.cc$")

  add_library(forebay_${NAME} STATIC ${LIB_SOURCES})
  target_link_libraries(forebay_${NAME} PUBLIC forebay_flags ${ARG_LINK})
  foreach(dep ${ARG_DEPS})
    target_link_libraries(forebay_${NAME} PUBLIC forebay_${dep})
  endforeach()

  # Helpers shared by tests (foo_testing.cc): never part of a shipped binary.
  set(TESTING_LIB "")
  if(TESTING_SOURCES)
    add_library(forebay_${NAME}_testing STATIC ${TESTING_SOURCES})
    target_link_libraries(forebay_${NAME}_testing PUBLIC forebay_${NAME} GTest::gtest)
    set(TESTING_LIB forebay_${NAME}_testing)
  endif()

  if(NOT FOREBAY_BUILD_TESTS)
    return()
  endif()
  foreach(src ${TEST_SOURCES})
    get_filename_component(base ${src} NAME_WE)
    set(target ${NAME}_${base})
    add_executable(${target} ${src})
    target_link_libraries(${target} PRIVATE forebay_${NAME} ${TESTING_LIB} GTest::gtest
                                            GTest::gmock GTest::gtest_main ${ARG_TEST_LINK})
    target_compile_definitions(${target} PRIVATE FOREBAY_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    add_test(NAME ${NAME}.${base} COMMAND ${target})
    set_tests_properties(${NAME}.${base} PROPERTIES TIMEOUT 600 LABELS "${NAME};${ARG_LABELS}")
    if(base MATCHES "_pjrt_test$")
      set_tests_properties(${NAME}.${base} PROPERTIES LABELS "${NAME};pjrt;${ARG_LABELS}")
    endif()
  endforeach()
endfunction()

# forebay_fuzz(ROOM FILE): a libFuzzer target from FILE (fuzz preset), else nothing.
function(forebay_fuzz ROOM FILE)
  if(NOT FOREBAY_BUILD_FUZZERS)
    return()
  endif()
  get_filename_component(base ${FILE} NAME_WE)
  add_executable(${base} ${FILE})
  target_link_libraries(${base} PRIVATE forebay_${ROOM})
  target_compile_options(${base} PRIVATE -fsanitize=fuzzer)
  target_link_options(${base} PRIVATE -fsanitize=fuzzer)
endfunction()
