use super::*;
use crate::{mounted_at, open_path};
use std::path::PathBuf;
use std::process::Command;

/// A loop device over a temporary file, detached when dropped. None without the right to have one.
struct Loop {
    path: PathBuf,
    backing: tempfile::NamedTempFile,
}

impl Loop {
    fn attach(len_bytes: u64) -> Option<Self> {
        let backing = tempfile::NamedTempFile::new().unwrap();
        backing.as_file().set_len(len_bytes).unwrap();
        let out = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(backing.path())
            .output()
            .ok()?;
        let path = String::from_utf8(out.stdout).unwrap().trim().to_owned();
        (out.status.success() && !path.is_empty()).then(|| Self {
            path: path.into(),
            backing,
        })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.path).status();
    }
}

#[test]
fn a_block_device_is_opened_once_for_writing_and_keeps_its_bytes() {
    let Some(disk) = Loop::attach((1 << 20) + 512) else {
        eprintln!("skipped: no loop device to be had here");
        return;
    };
    let options = OpenOptions::default();
    let device = RawDevice::open(&disk.path, options).unwrap();
    assert_eq!(device.geometry().len_bytes, 1 << 20);
    assert!(device.geometry().is_block_device);
    device.write_at(8192, &[b"he", b"llo"]).unwrap();
    device.sync().unwrap();
    let again = RawDevice::open(&disk.path, options);
    assert!(matches!(again, Err(DeviceError::Busy { .. })), "{again:?}");
    let read_only = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let reader = RawDevice::open(&disk.path, read_only);
    assert!(
        matches!(reader, Err(DeviceError::Busy { .. })),
        "{reader:?}"
    );
    drop(device);

    let device = open_path(&disk.path, options).unwrap();
    let mut out = [0u8; 5];
    device.read_at(8192, &mut out).unwrap();
    assert_eq!(&out, b"hello");
    device.discard(0, 1 << 20).unwrap();
    assert!(device.read_at(1 << 20, &mut out).is_err());
    assert_eq!(mounted_at(&disk.path).unwrap(), None);
}

#[test]
fn a_block_device_takes_note_of_its_new_length() {
    let Some(disk) = Loop::attach(1 << 20) else {
        eprintln!("skipped: no loop device to be had here");
        return;
    };
    let device = RawDevice::open(&disk.path, OpenOptions::default()).unwrap();
    let error = device.grow(1 << 20, 2 << 20).unwrap_err();
    assert!(error.to_string().contains("1048576 bytes only"), "{error}");
    disk.backing.as_file().set_len(2 << 20).unwrap();
    let status = Command::new("losetup").arg("-c").arg(&disk.path).status();
    assert!(status.unwrap().success());
    assert_eq!(device.medium_bytes().unwrap(), 2 << 20);
    device.grow(1 << 20, 2 << 20).unwrap();
    assert_eq!(device.geometry().len_bytes, 2 << 20);
    device.write_at((2 << 20) - 1, &[&[1]]).unwrap();
    device.shrink(1 << 20).unwrap();
}
