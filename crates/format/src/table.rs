//! Field tables: the one place where the layout of a fixed record is written down.
//!
//! `fields!` takes offset, type, name and meaning of each field. From it come the typed
//! accessors that the codec uses, a compile-time check that the fields cover the record without
//! gap or overlap, and the tables of `docs/format.md`.

use crate::FormatError;

/// One field of a fixed record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Offset in the record, in bytes.
    pub offset: usize,
    /// Length in bytes.
    pub len_bytes: usize,
    /// Type, as documentation says it.
    pub kind: &'static str,
    /// Name, in the spelling of a constant.
    pub name: &'static str,
    /// Meaning and valid values.
    pub meaning: &'static str,
}

/// A fixed record: its fields cover it without gap or overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Name of the record, as errors and documentation say it.
    pub name: &'static str,
    /// Location and purpose.
    pub about: &'static str,
    /// Length in bytes.
    pub len_bytes: usize,
    /// Its fields, in order of their offsets.
    pub fields: &'static [Field],
}

impl Table {
    /// Returns the error of a field with an invalid value.
    pub(crate) fn wrong(
        &self,
        field: &'static str,
        expected: &str,
        found: impl ToString,
    ) -> FormatError {
        FormatError::Field {
            record: self.name,
            field,
            expected: expected.to_owned(),
            found: found.to_string(),
        }
    }

    /// Fails the build unless the fields cover the record without gap or overlap.
    pub(crate) const fn check(&self) {
        let mut index = 0;
        let mut at = 0;
        while index < self.fields.len() {
            assert!(self.fields[index].offset == at, "a gap or an overlap");
            at += self.fields[index].len_bytes;
            index += 1;
        }
        assert!(at == self.len_bytes, "the fields do not fill the record");
    }
}

/// A type that a field can have: fixed width, little-endian.
pub(crate) trait Fixed: Sized {
    /// Width in bytes.
    const LEN_BYTES: usize;
    /// Name for documentation.
    const KIND: &'static str;
    fn read(bytes: &[u8]) -> Self;
    fn write(&self, bytes: &mut [u8]);
}

macro_rules! fixed_number {
    ($($ty:ident = $len:literal),+) => {$(
        impl Fixed for $ty {
            const LEN_BYTES: usize = $len;
            const KIND: &'static str = stringify!($ty);
            fn read(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("the accessor cuts the width"))
            }
            fn write(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        }
    )+};
}

fixed_number!(u8 = 1, u16 = 2, u32 = 4, u64 = 8, i64 = 8);

impl<const N: usize> Fixed for [u8; N] {
    const LEN_BYTES: usize = N;
    const KIND: &'static str = "bytes";
    fn read(bytes: &[u8]) -> Self {
        bytes.try_into().expect("the accessor cuts the width")
    }
    fn write(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(self);
    }
}

/// A typed field at a fixed offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<T> {
    offset: usize,
    kind: std::marker::PhantomData<T>,
}

impl<T: Fixed> At<T> {
    pub(crate) const fn new(offset: usize) -> Self {
        Self {
            offset,
            kind: std::marker::PhantomData,
        }
    }

    /// The field's bytes in the record.
    pub(crate) const fn range(self) -> std::ops::Range<usize> {
        self.offset..self.offset + T::LEN_BYTES
    }

    /// Reads the field. The record must be as long as its table says.
    pub(crate) fn get(self, record: &[u8]) -> T {
        T::read(&record[self.range()])
    }

    /// Writes the field. The record must be as long as its table says.
    pub(crate) fn put(self, record: &mut [u8], value: T) {
        value.write(&mut record[self.range()]);
    }
}

/// Declares a fixed record: `TABLE = "name", len, "about"; FIELD: type = offset, "meaning"; ...`.
macro_rules! fields {
    (
        $(#[$doc:meta])*
        $table:ident = $name:literal, $len:expr, $about:literal;
        $( $field:ident : $ty:ty = $at:literal, $meaning:literal; )+
    ) => {
        $( const $field: $crate::table::At<$ty> = $crate::table::At::new($at); )+
        $(#[$doc])*
        pub const $table: $crate::table::Table = $crate::table::Table {
            name: $name,
            about: $about,
            len_bytes: $len,
            fields: &[ $( $crate::table::Field {
                offset: $at,
                len_bytes: <$ty as $crate::table::Fixed>::LEN_BYTES,
                kind: <$ty as $crate::table::Fixed>::KIND,
                name: stringify!($field),
                meaning: $meaning,
            } ),+ ],
        };
        const _: () = $table.check();
    };
}
pub(crate) use fields;

/// CRC-32C of `salt` and then of `bytes`, with the four bytes of `hole` taken as zeros.
pub(crate) fn checksum_with_hole(salt: u64, bytes: &[u8], hole: std::ops::Range<usize>) -> u32 {
    assert_eq!(hole.len(), 4, "a checksum is four bytes");
    let mut sum = crate::codec::checksum(&salt.to_le_bytes());
    sum = crate::codec::checksum_append(sum, &bytes[..hole.start]);
    sum = crate::codec::checksum_append(sum, &[0; 4]);
    crate::codec::checksum_append(sum, &bytes[hole.end..])
}

/// Helpers for tests of fixed records.
#[cfg(test)]
pub(crate) mod testing {
    use super::Table;

    /// A record as text: one line a field, in hexadecimal.
    pub(crate) fn dump(table: &Table, record: &[u8]) -> String {
        let line = |field: &super::Field| {
            let bytes = &record[field.offset..field.offset + field.len_bytes];
            let is_zeros = bytes.len() > 32 && bytes.iter().all(|&b| b == 0);
            let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
            let shown = if is_zeros { "zeros".into() } else { hex };
            format!("{} {shown}", field.name.to_lowercase())
        };
        table.fields.iter().map(|f| line(f) + "\n").collect()
    }

    /// Every cut and every flipped bit of a record is refused, and none panics.
    pub(crate) fn refuses_damage(record: &[u8], decode: impl Fn(&[u8]) -> bool) {
        assert!(decode(record), "the record is valid");
        for cut in 0..record.len() {
            assert!(!decode(&record[..cut]), "cut at {cut}");
        }
        let mut bytes = record.to_vec();
        for bit in 0..record.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!decode(&bytes), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
