//! Counts the words of text, for ever: each run adds to what earlier runs have counted.
//!
//! ```text
//! cargo run --example wordcount -- words.stitch < README.md
//! ```
//!
//! Shows upserts (a count is added to without being read), batches (the counts of a piece of text
//! are one step), a second tree as an index, a snapshot, and scans both ways.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use stitchfs::{
    Batch, Compression, Database, Direction, KeyRange, MakeOptions, StoreError, StoreOptions, Tree,
    TreeOptions, UpsertRegistry, upsert_fn,
};

/// Number of the function that adds. Stored with every count that is not folded in yet, so it must
/// mean the same for ever.
const ADD: u32 = 1024;
/// Lines that are counted in one batch.
const BATCH_LINES: usize = 1000;

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_be_bytes)
}

/// Opens the store, or makes it, with the function that adds.
fn open(path: &Path) -> Result<Database, StoreError> {
    let mut upserts = UpsertRegistry::default();
    upserts.register(upsert_fn(ADD, "add", |_key, old, delta| {
        let sum = number(old.unwrap_or_default()).wrapping_add(number(delta));
        Some(sum.to_be_bytes().to_vec())
    }));
    let options = StoreOptions {
        upserts,
        ..StoreOptions::default()
    };
    let make = MakeOptions {
        len_bytes: Some(64 << 20),
        ..MakeOptions::default()
    };
    Database::open_or_create(path, &make, &options)
}

/// Adds the words of a text. Each batch is one step: after a crash no line is counted by half.
fn count(db: &Database, words: &Tree, text: impl BufRead) -> Result<(), Box<dyn Error>> {
    let mut batch = Batch::new();
    let mut lines = text.lines().peekable();
    while lines.peek().is_some() {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for line in lines.by_ref().take(BATCH_LINES) {
            for word in line?.split(|c: char| !c.is_alphanumeric()) {
                if !word.is_empty() {
                    *counts.entry(word.to_lowercase()).or_default() += 1;
                }
            }
        }
        for (word, count) in counts {
            batch.upsert(words, word.as_bytes(), ADD, &count.to_be_bytes());
        }
        db.commit(&batch)?;
        batch.clear();
    }
    Ok(())
}

/// Makes the index anew, in one step for concurrent readers.
fn sort(db: &Database, words: &Tree, by_count: &Tree) -> Result<(), StoreError> {
    let now = db.snapshot();
    let mut batch = Batch::new();
    batch.delete_range(by_count, b"", &[0xff; 9]);
    for row in words.scan_at(&now, KeyRange::all(), Direction::Forward)? {
        let (word, count) = row?;
        // Big-endian numbers sort as numbers do.
        batch.put(by_count, &[&count[..], &word].concat(), b"");
    }
    db.commit_sync(&batch)?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).map(PathBuf::from);
    let path = path.ok_or("usage: wordcount STORE < TEXT")?;
    let db = open(&path)?;
    let compressed = TreeOptions {
        compression: Compression::Lz4,
        ..TreeOptions::default()
    };
    let words = db.tree_or_create("words", &compressed)?;
    let by_count = db.tree_or_create("words by count", &TreeOptions::default())?;
    count(&db, &words, stdin().lock())?;
    sort(&db, &words, &by_count)?;

    // The most frequent first.
    let mut out = stdout().lock();
    let mut rows = by_count.scan(KeyRange::all(), Direction::Backward)?;
    for _ in 0..10 {
        let Some((key, _)) = rows.next_row()? else {
            break;
        };
        let (count, word) = key.split_at(8);
        let word = String::from_utf8_lossy(word);
        writeln!(out, "{:8} {word}", number(count))?;
    }
    drop(rows);
    db.close()?;
    Ok(())
}
