//! Every decoder as a function of arbitrary bytes: for fuzzers, and for a bounded test with seeded
//! bytes.
//!
//! If a checksum would reject nearly every input, the entry also tries the bytes with a correct
//! checksum, so that the code behind it is tested too. Decoded values must survive a round trip:
//! encoding them gives the same bytes, or bytes that decode to the same.

mod files;
mod tables;
mod views;
mod whole;

pub use files::{fs_chunk, fs_row, fs_rows};
pub use tables::{vt_data, vt_index, vt_range_deletes, vt_root};
pub use views::{fs_view, send_stream};
pub use whole::whole;

use stitch_base::sync::Arc;
use stitch_base::{Generation, Lsn, TreeId};
use stitch_device::{Device, MemDevice};
use stitch_filter::QuotientFilterRef;
use stitch_format::batch::{Messages, put_message};
use stitch_format::block::{self, BlockKind};
use stitch_format::codec::{checksum, checksum_append};
use stitch_format::log_record::short::{SHORT_HEADER_BYTES, ShortRecord};
use stitch_format::log_record::{self, RecordHeader};
use stitch_format::logged_commit::{self, LogItem, LogItems, put_absorbed};
use stitch_format::superblock::{self, COPIES, Superblock};
use stitch_format::table::Table;
use stitch_format::version_object::{self, ObjectHeader};
use stitch_format::vt_manifest::VersionEdit;
use stitch_fuse::wire::request::{Layout, Request};
use stitch_volume::{OpenOptions, Volume, VolumeError};

/// The salt of records here.
pub const SALT: u64 = 7;

/// A decoder under test.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Name of the fuzz target.
    pub name: &'static str,
    /// Must return, whatever the bytes.
    pub run: fn(&[u8]),
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// All of them.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: "batch",
        run: batch,
    },
    Entry {
        name: "block",
        run: block,
    },
    Entry {
        name: "filter",
        run: filter,
    },
    Entry {
        name: "fs_chunk",
        run: fs_chunk,
    },
    Entry {
        name: "fs_row",
        run: fs_row,
    },
    Entry {
        name: "fs_rows",
        run: fs_rows,
    },
    Entry {
        name: "fs_view",
        run: fs_view,
    },
    Entry {
        name: "fuse_request",
        run: fuse_request,
    },
    Entry {
        name: "log_record",
        run: log_record,
    },
    Entry {
        name: "logged_commit",
        run: logged_commit,
    },
    Entry {
        name: "send_stream",
        run: send_stream,
    },
    Entry {
        name: "superblock",
        run: superblock,
    },
    Entry {
        name: "version_object",
        run: version_object,
    },
    Entry {
        name: "vt_data",
        run: vt_data,
    },
    Entry {
        name: "vt_index",
        run: vt_index,
    },
    Entry {
        name: "vt_manifest",
        run: vt_manifest,
    },
    Entry {
        name: "vt_range_deletes",
        run: vt_range_deletes,
    },
    Entry {
        name: "vt_root",
        run: vt_root,
    },
    Entry {
        name: "volume",
        run: volume,
    },
    Entry {
        name: "volume_patched",
        run: volume_patched,
    },
    Entry {
        name: "whole",
        run: whole,
    },
];

/// Makes the checksum over `covered` bytes right, as `table` places it.
pub fn repair(bytes: &mut [u8], table: &Table, covered: usize, salt: u64) {
    let mut fields = table.fields.iter();
    let Some(field) = fields.find(|field| field.name.eq_ignore_ascii_case("checksum")) else {
        return;
    };
    let hole = field.offset..field.offset + field.len_bytes;
    if covered > bytes.len() || hole.end > covered {
        return;
    }
    bytes[hole.clone()].fill(0);
    let sum = checksum_append(checksum(&salt.to_le_bytes()), &bytes[..covered]);
    bytes[hole].copy_from_slice(&sum.to_le_bytes());
}

/// The little-endian number in a field, if the bytes reach that far.
fn number(bytes: &[u8], table: &Table, name: &str) -> Option<usize> {
    let field = table
        .fields
        .iter()
        .find(|field| field.name.eq_ignore_ascii_case(name))?;
    let raw = bytes.get(field.offset..field.offset + field.len_bytes)?;
    let value = raw
        .iter()
        .rev()
        .fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    usize::try_from(value).ok()
}

/// A commit as the log holds it.
pub fn logged_commit(bytes: &[u8]) {
    let Ok((first, items)) = LogItems::read(bytes) else {
        return;
    };
    let mut again = logged_commit::head(first).to_vec();
    let mut decoded = Vec::new();
    for item in items {
        let Ok(item) = item else {
            return;
        };
        match &item {
            LogItem::Message(tree, message) => put_message(&mut again, *tree, *message),
            LogItem::Run(run) => run.put(&mut again),
            LogItem::Absorbed(tree) => put_absorbed(&mut again, *tree),
        }
        decoded.push(item);
    }
    let (_, items) = LogItems::read(&again).expect("just encoded");
    let items: Result<Vec<_>, _> = items.collect();
    assert_eq!(items.as_ref(), Ok(&decoded), "a commit is worth its bytes");
}

/// A batch of messages.
pub fn batch(bytes: &[u8]) {
    let mut again = Vec::new();
    let mut messages: Vec<(TreeId, _)> = Vec::new();
    for message in Messages::new(bytes) {
        let Ok((tree, message)) = message else {
            return;
        };
        put_message(&mut again, tree, message);
        messages.push((tree, message));
    }
    let decoded: Result<Vec<_>, _> = Messages::new(&again).collect();
    assert_eq!(
        decoded.as_ref(),
        Ok(&messages),
        "a batch is worth its bytes"
    );
}

/// A block, of the kind that it says it is and of another.
pub fn block(bytes: &[u8]) {
    let mut owned = bytes.to_vec();
    for _ in 0..2 {
        for kind in BlockKind::ALL {
            for addr in [0, 4096] {
                if let Ok((header, payload)) = block::open(&owned, SALT, kind, addr) {
                    assert_eq!(header.addr, addr, "the address was checked");
                    assert_eq!(header.payload_len as usize, payload.len(), "one length");
                }
            }
        }
        let len = number(&owned, &block::TABLE, "payload_len").unwrap_or(0);
        repair(
            &mut owned,
            &block::TABLE,
            block::HEADER_BYTES.saturating_add(len),
            SALT,
        );
    }
}

/// A quotient filter.
pub fn filter(bytes: &[u8]) {
    let Ok(filter) = QuotientFilterRef::new(bytes) else {
        return;
    };
    for hash in 0..64u64 {
        let _: bool = filter.may_contain(hash.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

/// A request of the kernel.
pub fn fuse_request(bytes: &[u8]) {
    let mut owned = bytes.to_vec();
    for setxattr_ext in [false, true] {
        let _ =
            Request::parse(&owned, Layout { setxattr_ext }).map(|request| format!("{request:?}"));
        // The first word is the length: right in nearly every request that a kernel sends. The
        // kernel is on the same machine, and our machines are little-endian.
        if let Some(word) = owned.first_chunk_mut::<4>() {
            *word = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
        }
        let _ =
            Request::parse(&owned, Layout { setxattr_ext }).map(|request| format!("{request:?}"));
    }
}

/// A record of the backup log, long or short.
pub fn log_record(bytes: &[u8]) {
    short_log_record(bytes);
    let mut owned = bytes.to_vec();
    for _ in 0..2 {
        if let Ok(header) = RecordHeader::decode(&owned) {
            assert!(
                header.end() > header.lsn || header.lsn > Lsn(1 << 62),
                "records have a length"
            );
            let rest = &owned[log_record::HEADER_BYTES..];
            let payload = rest.get(..header.payload_len as usize).unwrap_or(rest);
            let _ = header.check(SALT, &owned, payload);
        }
        let len = number(&owned, &log_record::TABLE, "payload_len").unwrap_or(0);
        repair(
            &mut owned,
            &log_record::TABLE,
            log_record::HEADER_BYTES.saturating_add(len),
            SALT,
        );
    }
}

fn short_log_record(bytes: &[u8]) {
    for generation in [3, u64::from(bytes.get(6).copied().unwrap_or(0))] {
        let found = ShortRecord::decode(bytes, Lsn(512), Generation(generation));
        let Ok(found) = found else { continue };
        assert!(ShortRecord::is_at(bytes), "it says what it is");
        assert!(found.end() > found.lsn, "records have a length");
        let rest = &bytes[SHORT_HEADER_BYTES..];
        let payload = rest.get(..usize::from(found.payload_len));
        let _ = found.check(SALT, bytes, payload.unwrap_or(rest));
        if let Some(payload) = payload {
            let header = found.encode(SALT, &[payload]);
            assert_eq!(
                header[4..],
                bytes[4..SHORT_HEADER_BYTES],
                "but for the checksum"
            );
            assert_eq!(found.check(SALT, &header, payload), Ok(()));
        }
    }
}

/// A copy of the superblock.
pub fn superblock(bytes: &[u8]) {
    let mut owned = bytes.to_vec();
    for _ in 0..2 {
        for address in COPIES {
            if let Ok(Some(found)) = Superblock::decode(&owned, address) {
                let again = Superblock::decode(&found.encode(address), address);
                assert_eq!(again, Ok(Some(found)), "a superblock is worth its bytes");
            }
        }
        repair(
            &mut owned,
            &superblock::TABLE,
            superblock::SUPERBLOCK_BYTES,
            0,
        );
    }
}

/// An object of the version log.
pub fn version_object(bytes: &[u8]) {
    let mut owned = bytes.to_vec();
    for _ in 0..2 {
        let _ = ObjectHeader::decode_header(&owned);
        if let Ok((header, payload, sum)) = ObjectHeader::decode(SALT, &owned) {
            let (again, other) = header.encode(SALT, payload);
            assert_eq!(sum, other, "an object is worth its bytes");
            assert_eq!(again[..64], owned[..64], "an object is worth its bytes");
        }
        let len = number(&owned, &version_object::TABLE, "payload_len").unwrap_or(0);
        let covered = version_object::HEADER_BYTES.saturating_add(len);
        repair(&mut owned, &version_object::TABLE, covered, SALT);
    }
}

/// An edit of the VT-tree's version.
pub fn vt_manifest(bytes: &[u8]) {
    if let Ok(edit) = VersionEdit::decode(bytes) {
        let again = VersionEdit::decode(&edit.encode());
        assert_eq!(again.as_ref(), Ok(&edit), "an edit is worth its bytes");
    }
}

/// A whole volume: opened, its log replayed.
pub fn volume(bytes: &[u8]) {
    let device: Arc<dyn Device> = Arc::new(MemDevice::from_image(bytes));
    let _ = Volume::probe(&*device);
    let _ = Volume::identify(&*device);
    for read_only in [true, false] {
        let options = OpenOptions {
            read_only,
            ..OpenOptions::default()
        };
        let Ok(opened) = Volume::open(Arc::clone(&device), &options) else {
            continue;
        };
        let log = opened.volume.log();
        let _ = log.replay::<VolumeError, ()>(opened.log_start, &mut |_, _| Ok(()));
        if !read_only {
            let _ = log.append(&[b"still alive"]).and_then(|end| log.sync(end));
        }
    }
}

/// A valid volume with numbers of its superblocks, its version and its log replaced, and their
/// checksums made right: each 12 bytes are a place and a value.
pub fn volume_patched(bytes: &[u8]) {
    let mut image = crate::seeds::of("volume").remove(0);
    let records = crate::seeds::volume_records();
    for patch in bytes.chunks_exact(12).take(16) {
        let (at, table) = records[usize::from(patch[0]) % records.len()];
        let field = &table.fields[usize::from(patch[1]) % table.fields.len()];
        let len = field.len_bytes.min(8);
        let place = at + field.offset;
        image[place..place + len].copy_from_slice(&patch[4..4 + len]);
        let payload = number(&image[at..], table, "payload_len").unwrap_or(0);
        let covered = table.len_bytes.saturating_add(payload);
        let salt = if table.name == superblock::TABLE.name {
            0
        } else {
            SALT
        };
        repair(&mut image[at..], table, covered, salt);
    }
    volume(&image);
}
