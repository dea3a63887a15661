//! A moment of a file system's history. The user bytes of a pin whose name begins with
//! [`MOMENT_PREFIX`].

use crate::FormatError;
use crate::codec::Reader;
use crate::table::fields;

/// Prefix of the names of pins that are moments of the history; a number follows.
pub const MOMENT_PREFIX: &str = "history/";
/// Format version of the record, the newest that this program knows.
pub const MOMENT_VERSION: u32 = 1;

const MAGIC: [u8; 4] = *b"stmo";
const RECORD_BYTES: usize = 24;

fields! {
    /// Layout of the record.
    TABLE = "moment of the history", RECORD_BYTES,
        "User bytes of a pin named `history/` and a number: the whole file system as it was.";
    MAGIC_AT: [u8; 4] = 0, "`stmo`";
    VERSION_AT: u32 = 4, "format version: 1";
    CREATED: i64 = 8, "when it was, ns since 1970";
    KEEP: u64 = 16, "seconds after which it is dropped, at least 1";
}

/// A moment of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MomentRecord {
    /// When it was, in nanoseconds since 1970.
    pub created_ns: i64,
    /// Seconds after which it is dropped; not 0.
    pub keep_s: u64,
}

/// Returns the name of the pin of a moment.
#[must_use]
pub fn moment_pin(number: u64) -> String {
    format!("{MOMENT_PREFIX}{number}")
}

/// Returns the number in the name of the pin of a moment; `None` for any other name.
#[must_use]
pub fn moment_number(pin: &str) -> Option<u64> {
    let number = pin.strip_prefix(MOMENT_PREFIX)?.parse().ok()?;
    (moment_pin(number) == pin).then_some(number)
}

impl MomentRecord {
    /// Returns the record as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        debug_assert!(self.keep_s > 0, "a reader takes no other");
        let mut out = [0; RECORD_BYTES];
        MAGIC_AT.put(&mut out, MAGIC);
        VERSION_AT.put(&mut out, MOMENT_VERSION);
        CREATED.put(&mut out, self.created_ns);
        KEEP.put(&mut out, self.keep_s);
        out
    }

    /// Returns the record in `bytes`.
    ///
    /// # Errors
    /// [`FormatError`]: no such record, or one of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(TABLE.name, bytes);
        let record = reader.take(RECORD_BYTES)?;
        let magic = MAGIC_AT.get(record);
        if magic != MAGIC {
            return Err(TABLE.wrong("magic", "stmo", magic.escape_ascii()));
        }
        let version = VERSION_AT.get(record);
        if version > MOMENT_VERSION {
            return Err(FormatError::Newer {
                record: TABLE.name,
                found: version,
                supported: MOMENT_VERSION,
            });
        }
        let keep_s = KEEP.get(record);
        if version == 0 || keep_s == 0 {
            return Err(TABLE.wrong("keep", "at least 1, in version 1", keep_s));
        }
        reader.finish()?;
        Ok(Self {
            created_ns: CREATED.get(record),
            keep_s,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::testing::dump;

    const RECORD: MomentRecord = MomentRecord {
        created_ns: 1_700_000_000_123_456_789,
        keep_s: 3600,
    };

    #[test]
    fn its_bytes_are_pinned() {
        let bytes = RECORD.encode();
        assert_eq!(
            dump(&TABLE, &bytes),
            "magic_at 73746d6f\nversion_at 01000000\ncreated 15cd853dfe9c9717\n\
             keep 100e000000000000\n"
        );
        assert_eq!(MomentRecord::decode(&bytes), Ok(RECORD));
    }

    #[test]
    fn what_is_none_is_refused() {
        let good = RECORD.encode();
        for cut in 0..RECORD_BYTES {
            assert!(MomentRecord::decode(&good[..cut]).is_err(), "{cut}");
        }
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            MomentRecord::decode(&bytes)
        };
        assert!(with(0, b'x').is_err() && with(4, 0).is_err());
        assert!(matches!(with(4, 2), Err(FormatError::Newer { .. })));
        let mut never = good;
        never[16..].fill(0);
        assert!(MomentRecord::decode(&never).is_err());
        assert!(MomentRecord::decode(&[&good[..], &[0]].concat()).is_err());
    }

    #[test]
    fn names_of_pins_come_back() {
        assert_eq!(moment_pin(17), "history/17");
        assert_eq!(moment_number("history/17"), Some(17));
        for other in ["history/", "history/017", "history/+1", "fs/17", "17"] {
            assert_eq!(moment_number(other), None, "{other}");
        }
    }
}
