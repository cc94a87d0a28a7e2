//! The C ABI of apps/parquet_ffi/parquet_ffi.h over the `parquet` crate's column writers.
//!
//! One call writes one row group, so memory is bounded by what the caller collects. A panic inside
//! the library becomes an error.

mod columns;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::error::Error;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Once};
use std::{io, ptr, slice};

use columns::Column;
use parquet::basic::{Compression, Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::SchemaDescriptor;

/// What a failed call leaves: a message that Rust owns, and the errno of a failed write.
#[repr(C)]
pub struct FfiError {
    message: *mut u8,
    message_size: usize,
    os_error: i32,
}

pub struct ParquetFile {
    writer: SerializedFileWriter<File>,
}

// A C++ view of nothing may be null, which a Rust slice may not.
unsafe fn view<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 {
        return &[];
    }
    slice::from_raw_parts(data, size)
}

// The errno at the bottom of a chain of errors.
fn os_error(error: &ParquetError) -> i32 {
    let mut at: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(cause) = at {
        if let Some(code) = cause
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error)
        {
            return code;
        }
        at = match cause.downcast_ref::<ParquetError>() {
            Some(ParquetError::External(inner)) => Some(inner.as_ref()),
            _ => cause.source(),
        };
    }
    0
}

thread_local! {
    static PANIC_MESSAGE: RefCell<String> = const { RefCell::new(String::new()) };
}

// Keeps the reason of a panic for the error and off the terminal.
fn hold_panic_messages() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            PANIC_MESSAGE.with(|message| *message.borrow_mut() = info.to_string());
        }));
    });
}

/// Runs `body`; an error or a panic fills `error` and gives false.
fn guard(error: &mut FfiError, body: impl FnOnce() -> Result<(), ParquetError>) -> bool {
    hold_panic_messages();
    let (message, code) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return true,
        Ok(Err(reason)) => (reason.to_string(), os_error(&reason)),
        Err(_) => {
            let message = PANIC_MESSAGE.with(|message| message.take());
            (format!("the library panicked: {message}"), 0)
        }
    };
    let bytes = message.into_bytes().into_boxed_slice();
    error.message_size = bytes.len();
    error.message = Box::into_raw(bytes).cast::<u8>();
    error.os_error = code;
    false
}

impl ParquetFile {
    fn new(file: File, schema: &str) -> Result<Self, ParquetError> {
        let schema = Arc::new(parse_message_type(schema)?);
        let mut properties = WriterProperties::builder()
            .set_created_by("forebay".to_string())
            .set_compression(Compression::SNAPPY)
            .set_statistics_enabled(EnabledStatistics::Chunk);
        for column in SchemaDescriptor::new(schema.clone()).columns() {
            // Numbers that hardly repeat: a dictionary would be built and thrown away.
            if matches!(column.physical_type(), Type::FLOAT | Type::DOUBLE) {
                properties = properties.set_column_dictionary_enabled(column.path().clone(), false);
            }
        }
        let writer = SerializedFileWriter::new(file, schema, Arc::new(properties.build()))?;
        Ok(ParquetFile { writer })
    }

    fn write_row_group(&mut self, columns: &[Column]) -> Result<(), ParquetError> {
        let mut group = self.writer.next_row_group()?;
        let mut written = 0;
        while let Some(mut writer) = group.next_column()? {
            let column = columns.get(written).ok_or_else(|| {
                ParquetError::General(format!("{} columns given, the schema has more", written))
            })?;
            column.write(&mut writer)?;
            writer.close()?;
            written += 1;
        }
        if written != columns.len() {
            let message = format!("{} columns given, the schema has {written}", columns.len());
            return Err(ParquetError::General(message));
        }
        group.close()?;
        Ok(())
    }
}

#[no_mangle]
pub unsafe extern "C" fn forebay_parquet_error_free(error: FfiError) {
    if !error.message.is_null() {
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(
            error.message,
            error.message_size,
        )));
    }
}

#[no_mangle]
pub unsafe extern "C" fn forebay_parquet_new(
    fd: i32,
    schema: *const u8,
    schema_size: usize,
    out: &mut *mut ParquetFile,
    error: &mut FfiError,
) -> bool {
    guard(error, || {
        let schema = std::str::from_utf8(view(schema, schema_size))
            .map_err(|e| ParquetError::External(Box::new(e)))?;
        let file = File::from(BorrowedFd::borrow_raw(fd).try_clone_to_owned()?);
        *out = Box::into_raw(Box::new(ParquetFile::new(file, schema)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn forebay_parquet_write_row_group(
    file: &mut ParquetFile,
    columns: *const Column,
    columns_size: usize,
    error: &mut FfiError,
) -> bool {
    guard(error, || file.write_row_group(view(columns, columns_size)))
}

#[no_mangle]
pub unsafe extern "C" fn forebay_parquet_finish(
    file: &mut ParquetFile,
    error: &mut FfiError,
) -> bool {
    guard(error, || file.writer.finish().map(|_| ()))
}

#[no_mangle]
pub unsafe extern "C" fn forebay_parquet_free(file: *mut ParquetFile) {
    if !file.is_null() {
        drop(Box::from_raw(file));
    }
}
