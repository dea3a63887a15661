//! What a store is, as the variables that udev rules import.

use std::fmt::Write as _;
use stitch_format::superblock::Superblock;

/// Returns a line `NAME=VALUE` for each variable, with the names that libblkid uses.
pub(super) fn variables(superblock: &Superblock) -> String {
    let (major, minor) = superblock.version;
    let number = uuid::Uuid::from_bytes(superblock.uuid);
    let mut out = format!(
        "ID_FS_TYPE=stitchfs\n\
         ID_FS_USAGE=filesystem\n\
         ID_FS_VERSION={major}.{minor}\n\
         ID_FS_UUID={number}\n\
         ID_FS_UUID_ENC={number}\n"
    );
    if !superblock.label.is_empty() {
        let safe = safe(&superblock.label);
        let encoded = encoded(&superblock.label);
        let _ = write!(out, "ID_FS_LABEL={safe}\nID_FS_LABEL_ENC={encoded}\n");
    }
    out
}

/// Reports whether udev lets a character stand in the name of a link.
fn is_plain(character: char) -> bool {
    character.is_ascii_alphanumeric()
        || "#+-.:=@_".contains(character)
        || (!character.is_ascii() && !character.is_control() && !character.is_whitespace())
}

/// Returns the text with `_` for what may not stand in the name of a link.
fn safe(text: &str) -> String {
    let replaced = |c: char| if is_plain(c) { c } else { '_' };
    text.trim().chars().map(replaced).collect()
}

/// Returns the text with `\xNN` for each byte of what may not stand in the name of a link.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        if is_plain(character) {
            out.push(character);
            continue;
        }
        for byte in character.encode_utf8(&mut [0; 4]).bytes() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_encoded_as_udev_does() {
        assert_eq!(encoded("data-1"), "data-1");
        assert_eq!(encoded("a b/c\\"), "a\\x20b\\x2fc\\x5c");
        assert_eq!(encoded("gr\u{fc}n\n"), "gr\u{fc}n\\x0a");
        assert_eq!(safe(" a b/c\n"), "a_b_c");
    }
}
