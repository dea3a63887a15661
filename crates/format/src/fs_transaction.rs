//! Transactions of files, in the sys tree of mainline.
//!
//! A transaction is a file system over branches of mainline's trees. They are named
//! [`SCHEMA_PREFIX`], the number of the transaction, `/`, and `meta` and so on. The record is put
//! after the trees exist, and deleted after they are dropped; a commit replaces it in the same step
//! that drops them. So trees without a record, and an open record without trees, are what a crash
//! has left. Trees of records that a transaction has part in are branches beside them, see
//! [`TransactionTree`].
//!
//! Resolutions of conflicts follow the name, each a head (see `fs_resolution`) and what it is for.
//! Programs before them refuse a record that has some.
//!
//! A nested transaction has branches of the trees of another one, its outer transaction, whose
//! number lies between the head and the name ([`OUTER_TABLE`]). Programs before nesting would
//! commit it to mainline's memory, and refuse its record: its life is a number that they do not
//! know. The record is deleted in the step that ends the outer transaction.

mod trees;

pub use trees::{
    TransactionTree, records_tree_name, transaction_of_pin, transaction_pin, transaction_tree,
};

use crate::FormatError;
use crate::codec::Reader;
use crate::fs_resolution::Resolution;
use crate::table::fields;

/// Prefix of the names of a transaction's trees; its number follows.
pub const SCHEMA_PREFIX: &str = "txn~";
/// Longest name of a transaction, in bytes.
pub const TRANSACTION_NAME_BYTES_MAX: usize = 250;

const HEAD_BYTES: usize = 40;
const OPEN: u8 = 1;
const COMMITTED: u8 = 2;
const NAMED: u8 = 1;
const RUN: u8 = 2;
const NESTED_NAMED: u8 = 3;
const NESTED_RUN: u8 = 4;
const OUTER_BYTES: usize = 8;
const SNAPSHOT: u8 = 0;
const SERIALIZABLE: u8 = 1;
const READS_IN_ROWS: u8 = 2;

fields! {
    /// Layout of the record, before the name.
    TABLE = "transaction", HEAD_BYTES,
        "In the sys tree of mainline, under `t` and the number of the transaction (u64, \
        big-endian). Its name follows, then resolutions of conflicts.";
    STATE: u8 = 0, "1 open, 2 committed";
    LIFE: u8 = 1,
        "1 until it is ended, 2 until the store is opened again; 3 and 4: the same of a nested one";
    NAME_BYTES: u8 = 2, "length of the name if resolutions follow it; 0: the name ends the record";
    ISOLATION: u8 = 3,
        "0 snapshot isolation, 1 serializable, 2 serializable with all reads in rows";
    OWNER: u32 = 4, "user that began it";
    CREATED: i64 = 8, "when it began, ns since 1970";
    EXPIRES: i64 = 16, "when it may be aborted, ns since 1970; the largest number: never";
    ENDED: i64 = 24, "when it was committed, ns since 1970; 0 of one that is open";
    FIRST_INO: u64 = 32, "inode numbers from here on were not handed out when it began";
}

fields! {
    /// Layout of what follows the head of the record of a nested transaction.
    OUTER_TABLE = "outer transaction", OUTER_BYTES,
        "Follows the head of the record of a nested transaction, whose life is 3 or 4.";
    OUTER: u64 = 0, "number of the transaction that it began in, smaller than its own";
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionState {
    /// It can be worked in.
    Open,
    /// It was committed at this time, in nanoseconds since 1970.
    Committed(i64),
}

/// How long an open transaction lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransactionLife {
    /// Until it is committed or aborted.
    #[default]
    Named,
    /// Until the store is opened again, at most.
    Run,
}

/// What a commit checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransactionIsolation {
    /// That no other writer has changed what the transaction wrote, since it began.
    #[default]
    Snapshot,
    /// That, and the same of what it has read.
    Serializable,
}

/// A transaction of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionRecord {
    /// What became of it.
    pub state: TransactionState,
    /// How long it lives.
    pub life: TransactionLife,
    /// What its commit checks.
    pub isolation: TransactionIsolation,
    /// All that it has read is in rows, see [`crate::fs_reads`].
    pub has_reads: bool,
    /// User that began it.
    pub owner: u32,
    /// When it began, in nanoseconds since 1970.
    pub created_ns: i64,
    /// When it may be aborted, in nanoseconds since 1970; `i64::MAX` for never.
    pub expires_ns: i64,
    /// Inode numbers from here on were not handed out when it began.
    pub first_ino: u64,
    /// Number of the transaction that it began in; `None` for one that began in mainline.
    pub outer: Option<u64>,
    /// Its name, 1 to [`TRANSACTION_NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// Which side wins in conflicts with mainline; at most 64 KiB of them.
    pub resolutions: Vec<Resolution>,
}

impl TransactionRecord {
    /// Returns the record as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        debug_assert!(check_name(&self.name).is_ok(), "the name was checked");
        debug_assert!(self.first_ino != 0, "0 is no inode number");
        debug_assert!(
            !self.has_reads || self.isolation == TransactionIsolation::Serializable,
            "reads of others are not recorded"
        );
        let (state, ended) = match self.state {
            TransactionState::Open => (OPEN, 0),
            TransactionState::Committed(at) => (COMMITTED, at),
        };
        let life = match (self.life, self.outer) {
            (TransactionLife::Named, None) => NAMED,
            (TransactionLife::Run, None) => RUN,
            (TransactionLife::Named, Some(_)) => NESTED_NAMED,
            (TransactionLife::Run, Some(_)) => NESTED_RUN,
        };
        let isolation = match (self.isolation, self.has_reads) {
            (TransactionIsolation::Snapshot, _) => SNAPSHOT,
            (TransactionIsolation::Serializable, false) => SERIALIZABLE,
            (TransactionIsolation::Serializable, true) => READS_IN_ROWS,
        };
        let mut out = vec![0; HEAD_BYTES];
        STATE.put(&mut out, state);
        LIFE.put(&mut out, life);
        if !self.resolutions.is_empty() {
            let name_bytes = u8::try_from(self.name.len()).expect("the name was checked");
            NAME_BYTES.put(&mut out, name_bytes);
        }
        ISOLATION.put(&mut out, isolation);
        OWNER.put(&mut out, self.owner);
        CREATED.put(&mut out, self.created_ns);
        EXPIRES.put(&mut out, self.expires_ns);
        ENDED.put(&mut out, ended);
        FIRST_INO.put(&mut out, self.first_ino);
        if let Some(outer) = self.outer {
            debug_assert!(outer != 0, "0 is no transaction");
            let mut bytes = [0; OUTER_BYTES];
            OUTER.put(&mut bytes, outer);
            out.extend_from_slice(&bytes);
        }
        out.extend_from_slice(self.name.as_bytes());
        for resolution in &self.resolutions {
            resolution.encode(&mut out);
        }
        out
    }

    /// Returns the record in `bytes`.
    ///
    /// # Errors
    /// [`FormatError`]: no such record.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(TABLE.name, bytes);
        let head = reader.take(HEAD_BYTES)?;
        let (ended, name_bytes) = (ENDED.get(head), NAME_BYTES.get(head));
        let state = match STATE.get(head) {
            OPEN if ended == 0 => TransactionState::Open,
            OPEN => return Err(TABLE.wrong("ended", "0", ended)),
            COMMITTED => TransactionState::Committed(ended),
            other => return Err(TABLE.wrong("state", "1 or 2", other)),
        };
        let (life, is_nested) = match LIFE.get(head) {
            NAMED => (TransactionLife::Named, false),
            RUN => (TransactionLife::Run, false),
            NESTED_NAMED => (TransactionLife::Named, true),
            NESTED_RUN => (TransactionLife::Run, true),
            other => return Err(TABLE.wrong("life", "1 to 4", other)),
        };
        let (isolation, has_reads) = match ISOLATION.get(head) {
            SNAPSHOT => (TransactionIsolation::Snapshot, false),
            SERIALIZABLE => (TransactionIsolation::Serializable, false),
            READS_IN_ROWS => (TransactionIsolation::Serializable, true),
            other => return Err(TABLE.wrong("isolation", "0, 1 or 2", other)),
        };
        let first_ino = FIRST_INO.get(head);
        if first_ino == 0 || first_ino > crate::fs_key::INO_MAX {
            return Err(TABLE.wrong("first_ino", "an inode number", first_ino));
        }
        let outer = is_nested.then(|| decode_outer(&mut reader)).transpose()?;
        let name = match name_bytes {
            0 => reader.rest(),
            len => reader.take(usize::from(len))?,
        };
        let name = std::str::from_utf8(name);
        let name = name.map_err(|error| TABLE.wrong("name", "UTF-8", error))?;
        check_name(name)?;
        let mut resolutions = Vec::new();
        while name_bytes > 0 && (resolutions.is_empty() || !reader.is_empty()) {
            resolutions.push(Resolution::decode(&mut reader)?);
        }
        Ok(Self {
            state,
            life,
            isolation,
            has_reads,
            owner: OWNER.get(head),
            created_ns: CREATED.get(head),
            expires_ns: EXPIRES.get(head),
            first_ino,
            outer,
            name: name.to_owned(),
            resolutions,
        })
    }
}

fn decode_outer(reader: &mut Reader<'_>) -> Result<u64, FormatError> {
    match OUTER.get(reader.take(OUTER_BYTES)?) {
        0 => Err(OUTER_TABLE.wrong("outer", "the number of a transaction", 0)),
        outer => Ok(outer),
    }
}

fn check_name(name: &str) -> Result<(), FormatError> {
    let fits = (1..=TRANSACTION_NAME_BYTES_MAX).contains(&name.len());
    if fits && !matches!(name, "." | "..") && !name.contains(['/', '\0']) {
        return Ok(());
    }
    Err(TABLE.wrong("name", "a name of a file, up to 250 bytes", name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs_resolution::{self, ResolvedAt, Side};
    use crate::table::testing::dump;

    fn record(state: TransactionState, life: TransactionLife) -> TransactionRecord {
        TransactionRecord {
            state,
            life,
            isolation: TransactionIsolation::Snapshot,
            has_reads: false,
            owner: 1000,
            created_ns: 0x0102_0304_0506_0708,
            expires_ns: i64::MAX,
            first_ino: 4096,
            outer: None,
            name: "upgrade".to_owned(),
            resolutions: Vec::new(),
        }
    }

    fn resolved() -> TransactionRecord {
        let resolution = |side, path: &str| Resolution {
            side,
            seen: [7; 16],
            at: ResolvedAt::Path(path.into()),
        };
        TransactionRecord {
            resolutions: vec![resolution(Side::Ours, "a/b"), resolution(Side::Theirs, "")],
            ..record(TransactionState::Open, TransactionLife::Named)
        }
    }

    #[test]
    fn its_bytes_are_pinned() {
        let bytes = record(TransactionState::Committed(9), TransactionLife::Run).encode();
        assert_eq!(
            dump(&TABLE, &bytes[..HEAD_BYTES]),
            "state 02\nlife 02\nname_bytes 00\nisolation 00\nowner e8030000\n\
             created 0807060504030201\n\
             expires ffffffffffffff7f\nended 0900000000000000\nfirst_ino 0010000000000000\n"
        );
        assert_eq!(&bytes[HEAD_BYTES..], b"upgrade");
    }

    #[test]
    fn resolutions_are_pinned_and_come_back() {
        let record = resolved();
        let bytes = record.encode();
        assert_eq!(bytes[2], 7, "the length of the name");
        let at = HEAD_BYTES + 7;
        assert_eq!(
            dump(&fs_resolution::TABLE, &bytes[at..at + 20]),
            "side 01\nkind 00\npath_bytes 0300\nseen 07070707070707070707070707070707\n"
        );
        let lens = record.resolutions.iter().map(Resolution::len_bytes);
        assert_eq!(bytes.len(), at + lens.sum::<usize>());
        assert_eq!(TransactionRecord::decode(&bytes), Ok(record));
        for cut in [at, at + 5, at + 22, at + 24, bytes.len() - 1] {
            assert!(TransactionRecord::decode(&bytes[..cut]).is_err(), "{cut}");
        }
        for (byte, value) in [(at, 3), (at, 0), (at + 1, 2), (at + 2, 9)] {
            let mut bytes = bytes.clone();
            bytes[byte] = value;
            assert!(TransactionRecord::decode(&bytes).is_err(), "byte {byte}");
        }
    }

    #[test]
    fn it_comes_back() {
        for state in [TransactionState::Open, TransactionState::Committed(77)] {
            for life in [TransactionLife::Named, TransactionLife::Run] {
                let record = record(state, life);
                assert_eq!(TransactionRecord::decode(&record.encode()), Ok(record));
            }
        }
    }

    #[test]
    fn the_outer_one_lies_before_the_name() {
        for (life, byte) in [(TransactionLife::Named, 3), (TransactionLife::Run, 4)] {
            let record = TransactionRecord {
                outer: Some(0x0102_0304_0506_0708),
                life,
                ..resolved()
            };
            let bytes = record.encode();
            assert_eq!(bytes[1], byte);
            let (outer, rest) = bytes[HEAD_BYTES..].split_at(OUTER_BYTES);
            assert_eq!(dump(&OUTER_TABLE, outer), "outer 0807060504030201\n");
            assert!(rest.starts_with(b"upgrade"));
            assert_eq!(TransactionRecord::decode(&bytes), Ok(record));
            let mut none = bytes.clone();
            none[HEAD_BYTES..HEAD_BYTES + OUTER_BYTES].fill(0);
            assert!(TransactionRecord::decode(&none).is_err(), "0 is none");
            assert!(TransactionRecord::decode(&bytes[..HEAD_BYTES + 7]).is_err());
        }
    }

    #[test]
    fn isolation_and_reads_are_the_fourth_byte() {
        let open = record(TransactionState::Open, TransactionLife::Named);
        for has_reads in [false, true] {
            let record = TransactionRecord {
                isolation: TransactionIsolation::Serializable,
                has_reads,
                ..open.clone()
            };
            let bytes = record.encode();
            assert_eq!(bytes[2..4], [0, 1 + u8::from(has_reads)]);
            assert_eq!(TransactionRecord::decode(&bytes), Ok(record));
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        let good = record(TransactionState::Open, TransactionLife::Named).encode();
        for cut in 0..=HEAD_BYTES {
            assert!(TransactionRecord::decode(&good[..cut]).is_err(), "{cut}");
        }
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            TransactionRecord::decode(&bytes)
        };
        for (at, byte) in [
            (0, 0),
            (0, 3),
            (1, 0),
            (1, 5),
            (2, 1),
            (3, 3),
            (24, 1),
            (39, 0x80),
        ] {
            assert!(with(at, byte).is_err(), "byte {at}");
        }
        for byte in [b'/', 0, 0xff] {
            assert!(with(HEAD_BYTES, byte).is_err(), "name with {byte:#x}");
        }
        let long = [&good[..HEAD_BYTES], &[b'x'; TRANSACTION_NAME_BYTES_MAX + 1]].concat();
        assert!(TransactionRecord::decode(&long).is_err());
    }
}
