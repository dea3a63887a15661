//! `docs/format.md`, rendered from the field tables.

use crate::table::Table;
use crate::{
    block, fs_back, fs_inode, fs_moment, fs_policy, fs_reads, fs_resolution, fs_shared,
    fs_snapshot, fs_sys, fs_transaction, fs_view, instance, log_record, send_stream,
    store_identity, superblock, version_object,
};
use std::fmt::Write;

/// All fixed records, in the order in which a reader meets them.
pub const TABLES: [&Table; 26] = [
    &superblock::TABLE,
    &instance::TABLE,
    &version_object::TABLE,
    &log_record::TABLE,
    &log_record::short::TABLE,
    &block::TABLE,
    &fs_sys::TABLE,
    &fs_sys::external::TABLE,
    &fs_sys::allocated::TABLE,
    &fs_sys::rollback::TABLE,
    &fs_shared::TABLE,
    &fs_back::TABLE,
    &fs_inode::TABLE,
    &fs_snapshot::TABLE,
    &fs_snapshot::more::TABLE,
    &fs_policy::TABLE,
    &fs_moment::TABLE,
    &fs_view::TABLE,
    &fs_transaction::TABLE,
    &fs_transaction::OUTER_TABLE,
    &fs_reads::TABLE,
    &fs_resolution::TABLE,
    &store_identity::TABLE,
    &send_stream::HEAD_TABLE,
    &send_stream::HEADER_TABLE,
    &send_stream::TOKEN_TABLE,
];

const HEAD: &str = "\
# The format on the medium

Generated from the field tables of `crates/format`; `UPDATE=1 cargo test -p stitch-format` writes it
anew. Do not edit.

```
superblock A | superblock B | version log (ring) | backup log (ring) | zones 0..N
```

Numbers are little-endian and of fixed width; offsets and lengths are in bytes. Reserved bytes and
padding are zeros. Checksums are CRC-32C.
";

/// The text of `docs/format.md`.
#[must_use]
pub fn document() -> String {
    let mut out = String::from(HEAD);
    for table in TABLES {
        let infallible = "a string takes what is written to it";
        write!(out, "\n## {}\n\n{}\n\n", capital(table.name), table.about).expect(infallible);
        writeln!(out, "{} bytes.\n", table.len_bytes).expect(infallible);
        out.push_str("| offset | length | type | field | meaning |\n|---|---|---|---|---|\n");
        for field in table.fields {
            let name = field_name(field.name);
            writeln!(
                out,
                "| {} | {} | {} | `{name}` | {} |",
                field.offset, field.len_bytes, field.kind, field.meaning
            )
            .expect(infallible);
        }
    }
    out
}

/// Returns the name of a field for readers. Some constants end in `_AT` only to differ from a
/// constant with a wider scope.
fn field_name(constant: &str) -> String {
    match constant {
        "MAGIC_AT" => "magic".to_owned(),
        "VERSION_AT" => "version".to_owned(),
        other => other.to_lowercase(),
    }
}

fn capital(name: &str) -> String {
    let mut chars = name.chars();
    chars
        .next()
        .map_or_else(String::new, |c| c.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format.md");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, document()).unwrap();
        }
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(found, document(), "run with UPDATE=1 to write it anew");
    }

    #[test]
    fn every_field_is_documented() {
        for table in TABLES {
            assert!(!table.about.is_empty());
            for field in table.fields {
                assert!(!field.meaning.is_empty(), "{}: {}", table.name, field.name);
                assert!(!field.meaning.contains('|'), "a table's cell");
            }
        }
    }
}
