//! Paths in JSON: bytes that are no UTF-8 are escaped.

use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Returns a path as text, with `\xNN` for each byte that is part of no UTF-8 character.
#[must_use]
pub fn path_text(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Sets a member of a document to a path. One that is no UTF-8 is also set as an array of bytes,
/// under the name with `_raw` behind it.
pub fn set_path(document: &mut Value, name: &str, path: &Path) {
    document[name] = json!(path_text(path));
    if path.to_str().is_none() {
        document[format!("{name}_raw")] = json!(path.as_os_str().as_bytes());
    }
}

/// Sets a member of a document to a list of paths. If one is no UTF-8, all are also set as arrays
/// of bytes, under the name with `_raw` behind it.
pub fn set_paths(document: &mut Value, name: &str, paths: &[&Path]) {
    let texts = paths.iter().map(|path| path_text(path));
    document[name] = json!(texts.collect::<Vec<_>>());
    if paths.iter().any(|path| path.to_str().is_none()) {
        let raw = paths.iter().map(|path| path.as_os_str().as_bytes());
        document[format!("{name}_raw")] = json!(raw.collect::<Vec<_>>());
    }
}

/// Returns the path that [`set_path`] has set.
#[must_use]
pub fn path_in(document: &Value, name: &str) -> Option<PathBuf> {
    let raw = &document[format!("{name}_raw")];
    if raw.is_null() {
        return document[name].as_str().map(PathBuf::from);
    }
    let bytes = raw.as_array()?.iter();
    let bytes = bytes.map(|byte| u8::try_from(byte.as_u64()?).ok());
    let bytes: Vec<u8> = bytes.collect::<Option<_>>()?;
    Some(PathBuf::from(OsString::from_vec(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_goes_into_json_and_back() {
        for (bytes, text) in [
            (&b"/a/b"[..], "/a/b"),
            (b"/a\xff\xe2\x82b", "/a\\xff\\xe2\\x82b"),
            ("/\u{e9}\\xff".as_bytes(), "/\u{e9}\\xff"),
            (b"", ""),
        ] {
            let path = PathBuf::from(OsString::from_vec(bytes.to_vec()));
            let mut document = json!({});
            set_path(&mut document, "store", &path);
            assert_eq!(document["store"], text);
            assert_eq!(path_in(&document, "store"), Some(path));
        }
        assert_eq!(path_in(&json!({}), "store"), None);
        assert_eq!(path_in(&json!({ "store_raw": [256] }), "store"), None);
    }

    #[test]
    fn lists_have_all_bytes_if_one_path_is_no_utf_8() {
        let bad = PathBuf::from(OsString::from_vec(b"b\xff".to_vec()));
        let mut document = json!({});
        set_paths(&mut document, "removed", &[Path::new("a"), &bad]);
        let raw = [&b"a"[..], b"b\xff"];
        assert_eq!(
            document,
            json!({ "removed": ["a", "b\\xff"], "removed_raw": raw })
        );
        let mut document = json!({});
        set_paths(&mut document, "removed", &[Path::new("a")]);
        assert_eq!(document, json!({ "removed": ["a"] }));
    }
}
