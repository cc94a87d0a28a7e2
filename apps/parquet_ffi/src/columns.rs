//! One leaf column of a row group, as C++ lays it out.

use crate::view;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::writer::SerializedColumnWriter;

pub const INT32: i32 = 0;
pub const INT64: i32 = 1;
pub const FLOAT: i32 = 2;
pub const DOUBLE: i32 = 3;
pub const TEXT: i32 = 4;

/// Mirrors FfiParquetColumn; the pointers are valid during the call that passes it.
#[repr(C)]
pub struct Column {
    pub kind: i32,
    pub values: *const u8,
    pub values_size: usize,
    pub text_ends: *const u64,
    pub text_ends_size: usize,
    pub definition_levels: *const i16,
    pub repetition_levels: *const i16,
    pub levels_size: usize,
}

impl Column {
    fn values<T>(&self) -> &[T] {
        unsafe { view(self.values.cast::<T>(), self.values_size) }
    }

    fn levels(&self, levels: *const i16) -> Option<&[i16]> {
        (!levels.is_null()).then(|| unsafe { view(levels, self.levels_size) })
    }

    // Text that is not UTF-8 gets replacement characters: a reader must be able to trust the type.
    fn text(&self) -> Result<Vec<ByteArray>, ParquetError> {
        let bytes = self.values::<u8>();
        let mut begin = 0;
        let mut out = Vec::with_capacity(self.text_ends_size);
        for &end in unsafe { view(self.text_ends, self.text_ends_size) } {
            let end = end as usize;
            let value = bytes.get(begin..end).ok_or_else(|| {
                ParquetError::General(format!("a text ends at {end}, there are {}", bytes.len()))
            })?;
            out.push(ByteArray::from(
                String::from_utf8_lossy(value).into_owned().into_bytes(),
            ));
            begin = end;
        }
        Ok(out)
    }

    pub fn write(&self, to: &mut SerializedColumnWriter<'_>) -> Result<(), ParquetError> {
        let definition = self.levels(self.definition_levels);
        let repetition = self.levels(self.repetition_levels);
        match (self.kind, to.untyped()) {
            (INT32, ColumnWriter::Int32ColumnWriter(w)) => {
                w.write_batch(self.values::<i32>(), definition, repetition)?
            }
            (INT64, ColumnWriter::Int64ColumnWriter(w)) => {
                w.write_batch(self.values::<i64>(), definition, repetition)?
            }
            (FLOAT, ColumnWriter::FloatColumnWriter(w)) => {
                w.write_batch(self.values::<f32>(), definition, repetition)?
            }
            (DOUBLE, ColumnWriter::DoubleColumnWriter(w)) => {
                w.write_batch(self.values::<f64>(), definition, repetition)?
            }
            (TEXT, ColumnWriter::ByteArrayColumnWriter(w)) => {
                w.write_batch(&self.text()?, definition, repetition)?
            }
            (kind, _) => {
                return Err(ParquetError::General(format!(
                    "a column of kind {kind} does not have the schema's type"
                )))
            }
        };
        Ok(())
    }
}
