//! Words for how blocks are compressed.

use stitchfs::Compression;

/// What a word means.
pub(super) fn parse(word: &str) -> Result<Compression, String> {
    match word {
        "none" => Ok(Compression::None),
        "lz4" => Ok(Compression::Lz4),
        "zstd" => Ok(Compression::Zstd),
        _ => Err(format!("{word:?}: give none, lz4 or zstd")),
    }
}
