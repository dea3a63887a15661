//! `LABEL=NAME` and `UUID=NUMBER` as the name of a store on a block device.
//!
//! mount(8) and fsck(8) resolve such tags with libblkid, which does not know our superblock: there
//! a udev rule makes the links that they look for (see `dist/`). Given to this program, a tag is
//! resolved by reading the superblocks of all block devices.

use anyhow::{Result, bail};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use stitch_format::superblock::{COPIES, COPY_BYTES, Superblock};

const BLOCK_DEVICES: &str = "/sys/class/block";

/// A tag that stores are found by.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Tag {
    Label(Vec<u8>),
    Uuid(uuid::Uuid),
}

/// Returns the store that `given` names: the path itself, unless it is a tag and no file.
///
/// # Errors
/// If no block device has the tag, or several have.
pub(super) fn resolve(given: &Path) -> Result<PathBuf> {
    match Tag::parse(given.as_os_str()) {
        Some(tag) if !given.exists() => only_one(&tag?, given, devices()),
        _ => Ok(given.to_owned()),
    }
}

impl Tag {
    /// Returns `None` for what is no tag.
    fn parse(text: &OsStr) -> Option<Result<Self>> {
        let bytes = text.as_bytes();
        if let Some(label) = bytes.strip_prefix(b"LABEL=") {
            return Some(Ok(Self::Label(unquoted(label).to_owned())));
        }
        let number = unquoted(bytes.strip_prefix(b"UUID=")?);
        let parsed = uuid::Uuid::try_parse_ascii(number);
        Some(match parsed {
            Ok(number) => Ok(Self::Uuid(number)),
            Err(error) => Err(anyhow::anyhow!("{}: {error}", text.display())),
        })
    }

    fn is_of(&self, superblock: &Superblock) -> bool {
        match self {
            Self::Label(label) => superblock.label.as_bytes() == label,
            Self::Uuid(number) => superblock.uuid == *number.as_bytes(),
        }
    }
}

/// Returns the text within double quotes, as fstab(5) has them.
fn unquoted(text: &[u8]) -> &[u8] {
    let inner = text
        .strip_prefix(b"\"")
        .and_then(|rest| rest.strip_suffix(b"\""));
    inner.unwrap_or(text)
}

fn only_one(tag: &Tag, given: &Path, devices: impl Iterator<Item = PathBuf>) -> Result<PathBuf> {
    let mut unreadable = 0;
    let mut found = Vec::new();
    for device in devices {
        match read_superblock(&device) {
            Ok(Some(superblock)) if tag.is_of(&superblock) => found.push(device),
            Ok(_) => {}
            Err(_) => unreadable += 1,
        }
    }
    let given = given.display();
    match found.as_slice() {
        [device] => Ok(device.clone()),
        [] if unreadable > 0 => {
            bail!("{given}: no block device has it; {unreadable} could not be read (try as root)")
        }
        [] => bail!("{given}: no block device has it; a store in a file is named by its path"),
        [first, second, ..] => bail!(
            "{given}: {} and {} both have it; name the device",
            first.display(),
            second.display()
        ),
    }
}

fn devices() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(BLOCK_DEVICES).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
    names.sort();
    // The kernel writes a slash in a name of a device as `!`.
    names.into_iter().map(|name| {
        let slashed = |byte: &u8| if *byte == b'!' { b'/' } else { *byte };
        let name: Vec<u8> = name.as_bytes().iter().map(slashed).collect();
        Path::new("/dev").join(OsStr::from_bytes(&name))
    })
}

/// Returns the newest valid superblock of a device or file, without locking it.
///
/// # Errors
/// If it cannot be opened or read.
pub(super) fn read_superblock(path: &Path) -> std::io::Result<Option<Superblock>> {
    let file = File::open(path)?;
    let mut newest: Option<Superblock> = None;
    for at in COPIES {
        let mut bytes = [0; COPY_BYTES];
        match file.read_exact_at(&mut bytes, at) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => break,
            other => other?,
        }
        let copy = Superblock::decode(&bytes, at).ok().flatten();
        let is_newer = |copy: &Superblock| {
            newest
                .as_ref()
                .is_none_or(|found| copy.generation > found.generation)
        };
        if let Some(copy) = copy.filter(is_newer) {
            newest = Some(copy);
        }
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitchfs::MakeOptions;

    const NUMBER: &str = "8d0f7ed1-3c21-4ea9-8f3c-3f6b1a2b9f00";

    fn parsed(text: &str) -> Option<Tag> {
        Tag::parse(OsStr::new(text)).map(|tag| tag.expect("it is a tag"))
    }

    #[test]
    fn tags_are_told_from_paths() {
        assert_eq!(parsed("LABEL=box"), Some(Tag::Label(b"box".to_vec())));
        assert_eq!(parsed("LABEL=\"a b\""), Some(Tag::Label(b"a b".to_vec())));
        let number = uuid::Uuid::try_parse(NUMBER).unwrap();
        let text = format!("UUID={NUMBER}");
        assert_eq!(parsed(&text), Some(Tag::Uuid(number)));
        assert_eq!(parsed(&text.to_uppercase()), Some(Tag::Uuid(number)));
        assert_eq!(parsed("label=box"), None);
        assert_eq!(parsed("./LABEL=box"), None);
        assert!(Tag::parse(OsStr::new("UUID=box")).unwrap().is_err());
    }

    #[test]
    fn one_device_with_the_tag_is_found_and_two_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, label: &str| {
            let options = MakeOptions {
                len_bytes: Some(16 << 20),
                label: label.to_owned(),
                ..MakeOptions::default()
            };
            let path = dir.path().join(name);
            let made = stitchfs::make(&path, &options, &mut |_, _| {}).unwrap();
            (path, made.uuid)
        };
        let (one, number) = make("one", "box");
        let (two, _) = make("two", "crate");
        let all = [one.clone(), two.clone(), dir.path().join("missing")];
        let find = |tag: Tag| only_one(&tag, Path::new("LABEL=x"), all.clone().into_iter());
        assert_eq!(find(Tag::Label(b"crate".to_vec())).unwrap(), two);
        let by_number = Tag::Uuid(number);
        assert_eq!(find(by_number).unwrap(), one);
        let missing = find(Tag::Label(b"bo".to_vec())).unwrap_err().to_string();
        assert!(missing.contains("1 could not be read"), "{missing}");

        std::fs::remove_file(&two).unwrap();
        make("two", "box");
        let twice = find(Tag::Label(b"box".to_vec())).unwrap_err().to_string();
        assert!(twice.contains("both have it"), "{twice}");
    }

    #[test]
    fn damage_of_one_copy_hides_no_store() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let options = MakeOptions {
            len_bytes: Some(16 << 20),
            label: "box".to_owned(),
            ..MakeOptions::default()
        };
        stitchfs::make(&path, &options, &mut |_, _| {}).unwrap();
        for (at, is_left) in [(0, true), (4096, false)] {
            let file = File::options().write(true).open(&path).unwrap();
            file.write_all_at(&[0; 512], at).unwrap();
            let found = read_superblock(&path).unwrap();
            assert_eq!(found.is_some(), is_left);
        }
        std::fs::write(&path, b"short").unwrap();
        assert_eq!(read_superblock(&path).unwrap(), None);
    }
}
