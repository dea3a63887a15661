//! A policy of snapshots: how often one of a directory is created, and which are kept. A row of the
//! sys tree under `p` and the directory's inode number. Of a directory in a clone it is in the sys
//! tree of mainline: under `p`, the number of the clone, and the inode number in the clone.

use crate::FormatError;
use crate::codec::Reader;
use crate::fs_snapshot::SNAPSHOT_PATH_BYTES_MAX;
use crate::table::fields;

const HEAD_BYTES: usize = 32;
/// Longest interval, in seconds: ten years.
pub const POLICY_EVERY_S_MAX: u64 = 10 * 366 * 24 * 3600;
/// Longest prefix of the names of a policy's snapshots, in bytes.
pub const POLICY_PREFIX_BYTES_MAX: usize = 200;

fields! {
    /// Layout of the row, before prefix and path.
    TABLE = "policy of snapshots", HEAD_BYTES,
        "In the sys tree, under `p` and the inode number of the directory. Of a directory in a \
         clone it is in the sys tree of mainline: under `p`, the number of the clone and the inode \
         number in it. The prefix of the snapshots' names follows, then the path of the directory \
         from the root of mainline, through the directories that clones lie at, without a slash at \
         either end; it is empty for the root.";
    EVERY: u64 = 0, "seconds from one snapshot to the next, 1 to 316224000";
    OWNER: u32 = 8, "user that owned the directory";
    RESERVED: u32 = 12, "0";
    LAST: u16 = 16, "kept: this number of the newest";
    HOURLY: u16 = 18, "kept: the newest of each of this number of hours";
    DAILY: u16 = 20, "kept: the newest of each of this number of days of UTC";
    WEEKLY: u16 = 22, "kept: the newest of each of this number of weeks, from Monday on";
    MONTHLY: u16 = 24, "kept: the newest of each of this number of months";
    YEARLY: u16 = 26, "kept: the newest of each of this number of years";
    PREFIX_LEN: u16 = 28, "bytes of the prefix, 1 to 200";
    RESERVED_TOO: u16 = 30, "0";
}

/// Which snapshots of a policy are kept. The newest one always is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// This number of the newest.
    pub last: u16,
    /// The newest of each of this number of hours.
    pub hourly: u16,
    /// The newest of each of this number of days.
    pub daily: u16,
    /// The newest of each of this number of weeks.
    pub weekly: u16,
    /// The newest of each of this number of months.
    pub monthly: u16,
    /// The newest of each of this number of years.
    pub yearly: u16,
}

/// A policy of snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRow {
    /// Seconds from one snapshot to the next, at most [`POLICY_EVERY_S_MAX`].
    pub every_s: u64,
    /// Which are kept.
    pub keep: Keep,
    /// User that owned the directory.
    pub owner: u32,
    /// What the names of its snapshots begin with; see [`is_prefix`].
    pub prefix: String,
    /// Path of the directory when the policy last used it.
    pub path: Vec<u8>,
}

/// Reports whether names of a policy's snapshots may begin with a text.
#[must_use]
pub fn is_prefix(text: &str) -> bool {
    let is_short = (1..=POLICY_PREFIX_BYTES_MAX).contains(&text.len());
    is_short && !text.contains(|letter: char| letter == '/' || letter.is_control())
}

impl PolicyRow {
    /// Returns the row as bytes.
    ///
    /// # Panics
    /// If the prefix is none.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        debug_assert!((1..=POLICY_EVERY_S_MAX).contains(&self.every_s));
        assert!(is_prefix(&self.prefix), "a reader takes no other prefix");
        let mut out = vec![0; HEAD_BYTES];
        EVERY.put(&mut out, self.every_s);
        OWNER.put(&mut out, self.owner);
        LAST.put(&mut out, self.keep.last);
        HOURLY.put(&mut out, self.keep.hourly);
        DAILY.put(&mut out, self.keep.daily);
        WEEKLY.put(&mut out, self.keep.weekly);
        MONTHLY.put(&mut out, self.keep.monthly);
        YEARLY.put(&mut out, self.keep.yearly);
        let len = u16::try_from(self.prefix.len()).expect("a prefix has a bound");
        PREFIX_LEN.put(&mut out, len);
        out.extend_from_slice(self.prefix.as_bytes());
        out.extend_from_slice(&self.path);
        out
    }

    /// Returns the row in `bytes`.
    ///
    /// # Errors
    /// [`FormatError`]: no such row.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(TABLE.name, bytes);
        let head = reader.take(HEAD_BYTES)?;
        let every_s = EVERY.get(head);
        if !(1..=POLICY_EVERY_S_MAX).contains(&every_s) {
            return Err(TABLE.wrong("every", "1 s to ten years", every_s));
        }
        if RESERVED.get(head) != 0 || RESERVED_TOO.get(head) != 0 {
            return Err(TABLE.wrong("reserved", "0", RESERVED.get(head)));
        }
        let prefix = reader.take(usize::from(PREFIX_LEN.get(head)))?;
        let prefix = std::str::from_utf8(prefix)
            .ok()
            .filter(|text| is_prefix(text));
        let prefix = prefix.ok_or_else(|| TABLE.wrong("prefix", "a text", "none"))?;
        let path = reader.rest();
        if path.len() > SNAPSHOT_PATH_BYTES_MAX {
            return Err(TABLE.wrong("path", "at most 4000 bytes", path.len()));
        }
        Ok(Self {
            every_s,
            keep: Keep {
                last: LAST.get(head),
                hourly: HOURLY.get(head),
                daily: DAILY.get(head),
                weekly: WEEKLY.get(head),
                monthly: MONTHLY.get(head),
                yearly: YEARLY.get(head),
            },
            owner: OWNER.get(head),
            prefix: prefix.to_owned(),
            path: path.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::testing::dump;

    fn row() -> PolicyRow {
        PolicyRow {
            every_s: 900,
            keep: Keep {
                last: 1,
                hourly: 24,
                daily: 7,
                weekly: 4,
                monthly: 12,
                yearly: 3,
            },
            owner: 1000,
            prefix: "auto".to_owned(),
            path: b"home/ada".to_vec(),
        }
    }

    #[test]
    fn its_bytes_are_pinned() {
        let bytes = row().encode();
        assert_eq!(
            dump(&TABLE, &bytes[..HEAD_BYTES]),
            "every 8403000000000000\nowner e8030000\nreserved 00000000\nlast 0100\nhourly 1800\n\
             daily 0700\nweekly 0400\nmonthly 0c00\nyearly 0300\nprefix_len 0400\n\
             reserved_too 0000\n"
        );
        assert_eq!(&bytes[HEAD_BYTES..], b"autohome/ada");
        assert_eq!(PolicyRow::decode(&bytes), Ok(row()));
    }

    #[test]
    fn what_is_none_is_refused() {
        let good = row().encode();
        for cut in 0..HEAD_BYTES + 4 {
            assert!(PolicyRow::decode(&good[..cut]).is_err(), "{cut}");
        }
        for (at, byte) in [
            (12, 1),
            (30, 1),
            (28, 0),
            (28, 255),
            (32, b'/'),
            (32, 0xff),
            (6, 1),
        ] {
            let mut bytes = good.clone();
            bytes[at] = byte;
            assert!(PolicyRow::decode(&bytes).is_err(), "{at}");
        }
        let mut never = good.clone();
        never[..8].fill(0);
        assert!(PolicyRow::decode(&never).is_err());
        let long = [&good[..], &[b'x'; SNAPSHOT_PATH_BYTES_MAX]].concat();
        assert!(PolicyRow::decode(&long).is_err());
        assert!(is_prefix("auto") && !is_prefix("") && !is_prefix("a/b"));
        assert!(!is_prefix(&"x".repeat(POLICY_PREFIX_BYTES_MAX + 1)));
    }
}
