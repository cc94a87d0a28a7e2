//! What was written is what a reader finds; what cannot be written is an error, never a crash.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::ptr;

use crate::columns::{Column, DOUBLE, INT32, INT64, TEXT};
use crate::{
    forebay_parquet_error_free, forebay_parquet_finish, forebay_parquet_free, forebay_parquet_new,
    forebay_parquet_write_row_group, FfiError, ParquetFile,
};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{ListAccessor, RowAccessor};

const SCHEMA: &str = "message rows {
  required int64 id;
  optional int64 batch;
  required binary name (STRING);
  required group tokens (LIST) { repeated group list { required int32 element; } }
  required group rewards (MAP) {
    repeated group key_value { required binary key (STRING); required double value; }
  }
}";

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("forebay_parquet_{}_{name}", std::process::id()))
}

fn column<T>(kind: i32, values: &[T]) -> Column {
    Column {
        kind,
        values: values.as_ptr().cast(),
        values_size: values.len(),
        text_ends: ptr::null(),
        text_ends_size: 0,
        definition_levels: ptr::null(),
        repetition_levels: ptr::null(),
        levels_size: 0,
    }
}

fn no_error() -> FfiError {
    FfiError {
        message: ptr::null_mut(),
        message_size: 0,
        os_error: 0,
    }
}

fn take(error: FfiError) -> (String, i32) {
    let bytes = unsafe { crate::view(error.message, error.message_size) }.to_vec();
    let code = error.os_error;
    unsafe { forebay_parquet_error_free(error) };
    (String::from_utf8(bytes).unwrap(), code)
}

fn open(file: &File, schema: &str) -> Result<*mut ParquetFile, (String, i32)> {
    let mut out = ptr::null_mut();
    let mut error = no_error();
    let ok = unsafe {
        forebay_parquet_new(
            file.as_raw_fd(),
            schema.as_ptr(),
            schema.len(),
            &mut out,
            &mut error,
        )
    };
    if ok {
        Ok(out)
    } else {
        Err(take(error))
    }
}

#[test]
fn rows_come_back() {
    let path = path("rows");
    let file = File::create(&path).unwrap();
    let writer = open(&file, SCHEMA).unwrap();
    let ends = [1_u64, 3];
    let key_ends = [1_u64, 2];
    let mut name = column(TEXT, b"a\xff\xfe");
    (name.text_ends, name.text_ends_size) = (ends.as_ptr(), 2);
    // The first row has no batch and no tokens, the second three.
    let mut batch = column(INT64, &[7_i64]);
    (batch.definition_levels, batch.levels_size) = ([0_i16, 1].as_ptr(), 2);
    let mut tokens = column(INT32, &[5_i32, 6, 7]);
    tokens.definition_levels = [0_i16, 1, 1, 1].as_ptr();
    tokens.repetition_levels = [0_i16, 0, 1, 1].as_ptr();
    tokens.levels_size = 4;
    let mut keys = column(TEXT, b"kv");
    (keys.text_ends, keys.text_ends_size) = (key_ends.as_ptr(), 2);
    let mut values = column(DOUBLE, &[0.5_f64, 1.5]);
    for map in [&mut keys, &mut values] {
        map.definition_levels = [1_i16, 1, 0].as_ptr();
        map.repetition_levels = [0_i16, 1, 0].as_ptr();
        map.levels_size = 3;
    }
    let columns = [
        column(INT64, &[1_i64, 2]),
        batch,
        name,
        tokens,
        keys,
        values,
    ];
    let mut error = no_error();
    unsafe {
        for _ in 0..2 {
            let ok = forebay_parquet_write_row_group(&mut *writer, columns.as_ptr(), 6, &mut error);
            assert!(ok, "{:?}", take(error));
        }
        assert!(forebay_parquet_finish(&mut *writer, &mut error));
        forebay_parquet_free(writer);
    }
    let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
    assert_eq!(reader.num_row_groups(), 2);
    let rows: Vec<_> = reader
        .get_row_iter(None)
        .unwrap()
        .map(|row| row.unwrap())
        .collect();
    std::fs::remove_file(path).unwrap();
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[0].get_long(0).unwrap(), 1);
    assert!(rows[0].get_long(1).is_err()); // null
    assert_eq!(rows[1].get_long(1).unwrap(), 7);
    assert_eq!(rows[0].get_string(2).unwrap(), "a");
    assert_eq!(rows[1].get_string(2).unwrap(), "\u{fffd}\u{fffd}");
    assert_eq!(rows[0].get_list(3).unwrap().len(), 0);
    assert_eq!(rows[3].get_list(3).unwrap().get_int(2).unwrap(), 7);
    assert_eq!(rows[2].get_map(4).unwrap().len(), 2);
    assert_eq!(rows[3].get_map(4).unwrap().len(), 0);
}

#[test]
fn a_bad_schema_is_an_error() {
    let file = File::create(path("schema")).unwrap();
    std::fs::remove_file(path("schema")).unwrap();
    assert!(open(&file, "message { required int46 x; }").is_err());
    assert!(open(&file, "").is_err());
}

#[test]
fn columns_that_do_not_fit_the_schema_are_an_error() {
    let file = File::create(path("fit")).unwrap();
    std::fs::remove_file(path("fit")).unwrap();
    let schema = "message rows { required int64 a; required int64 b; }";
    let good = || column(INT64, &[1_i64]);
    let long = column(INT64, &[1_i64, 2]);
    let wrong = column(INT32, &[1_i32]);
    let cases = [
        vec![good()],
        vec![good(), good(), good()],
        vec![good(), wrong],
        vec![good(), long],
    ];
    for columns in cases {
        let writer = open(&file, schema).unwrap();
        let mut error = no_error();
        unsafe {
            let ok = forebay_parquet_write_row_group(
                &mut *writer,
                columns.as_ptr(),
                columns.len(),
                &mut error,
            );
            assert!(!ok);
            forebay_parquet_free(writer);
        }
        assert!(!take(error).0.is_empty());
    }
}

#[test]
fn a_full_disk_gives_its_errno() {
    let file = File::options().write(true).open("/dev/full").unwrap();
    let (message, code) = match open(&file, "message rows { required int64 a; }") {
        Err(error) => error,
        Ok(writer) => unsafe {
            let mut error = no_error();
            let columns = [column(INT64, &[1_i64])];
            let ok = forebay_parquet_write_row_group(&mut *writer, columns.as_ptr(), 1, &mut error)
                && forebay_parquet_finish(&mut *writer, &mut error);
            forebay_parquet_free(writer);
            assert!(!ok);
            take(error)
        },
    };
    assert_eq!(code, 28, "{message}");
}
