//! Recognises other formats on a device by well-known bytes at well-known offsets.

use crate::VolumeError;
use crate::window::usize_from;
use stitch_device::Device;
use stitch_format::superblock;

/// A format that was recognised on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Its name, as users know it.
    pub name: &'static str,
    /// Offset of the signature on the device.
    pub at: u64,
}

/// A kind of signature: its bytes, and all offsets where they may be.
struct Known {
    name: &'static str,
    bytes: &'static [u8],
    at: &'static [u64],
}

const fn known(name: &'static str, bytes: &'static [u8], at: &'static [u64]) -> Known {
    Known { name, bytes, at }
}

/// The last 10 bytes of a page, for each size that pages have.
const SWAP_AT: &[u64] = &[4086, 8182, 16_374, 32_758, 65_526];

/// Specific kinds first: the mark of a partition table is also found on boot sectors of file
/// systems.
const KNOWN: &[Known] = &[
    known("StitchFS", &superblock::MAGIC, &superblock::COPIES),
    known("LUKS", b"LUKS\xba\xbe", &[0]),
    known("LVM2", b"LABELONE", &[0, 512, 1024, 1536]),
    known("Linux RAID", b"\xfc\x4e\x2b\xa9", &[0, 4096]),
    known("XFS", b"XFSB", &[0]),
    known("Btrfs", b"_BHRfS_M", &[0x1_0040]),
    known("F2FS", b"\x10\x20\xf5\xf2", &[1024]),
    known("EROFS", b"\xe2\xe1\xf5\xe0", &[1024]),
    known("ext2, ext3 or ext4", b"\x53\xef", &[1080]),
    known("Linux swap", b"SWAPSPACE2", SWAP_AT),
    known("Linux swap", b"SWAP-SPACE", SWAP_AT),
    known("ISO 9660", b"CD001", &[32_769]),
    known("SquashFS", b"hsqs", &[0]),
    known(
        "bcachefs",
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        &[4120],
    ),
    known("NTFS", b"NTFS    ", &[3]),
    known("exFAT", b"EXFAT   ", &[3]),
    known("FAT", b"FAT32   ", &[82]),
    known("FAT", b"FAT12   ", &[54]),
    known("FAT", b"FAT16   ", &[54]),
    known("GPT partition table", b"EFI PART", &[512, 4096]),
    known("MBR partition table", b"\x55\xaa", &[510]),
];

/// The uberblocks of the first ZFS label: one per KiB.
const ZFS_AT: std::ops::Range<u64> = (128 << 10)..(256 << 10);
const ZFS_MAGIC: u64 = 0x00ba_b10c;

/// Returns the format of the device, if it is recognised.
///
/// # Errors
/// [`VolumeError::Device`] if it cannot be read.
pub(crate) fn probe(device: &dyn Device) -> Result<Option<Signature>, VolumeError> {
    let len_bytes = device.geometry().len_bytes.min(ZFS_AT.end);
    let mut head = vec![0; usize_from(len_bytes)];
    device.read_at(0, &mut head)?;
    for known in KNOWN {
        for &at in known.at {
            let from = usize_from(at);
            if head.get(from..from + known.bytes.len()) == Some(known.bytes) {
                let name = known.name;
                debug_assert!(at < len_bytes, "it lies in what was read");
                return Ok(Some(Signature { name, at }));
            }
        }
    }
    Ok(probe_zfs(&head))
}

fn probe_zfs(head: &[u8]) -> Option<Signature> {
    let (low, high) = (ZFS_MAGIC.to_le_bytes(), ZFS_MAGIC.to_be_bytes());
    ZFS_AT.step_by(1024).find_map(|at| {
        let from = usize_from(at);
        let found = head.get(from..from + 8)?;
        let is_zfs = found == low || found == high;
        is_zfs.then_some(Signature { name: "ZFS", at })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_device::MemDevice;

    #[test]
    fn every_known_signature_is_found_wherever_it_can_be() {
        for known in KNOWN {
            for &at in known.at {
                let device = MemDevice::new(1 << 20);
                device.write_at(at, &[known.bytes]).unwrap();
                let found = probe(&device).unwrap();
                assert_eq!(
                    found,
                    Some(Signature {
                        name: known.name,
                        at
                    })
                );
            }
        }
        let device = MemDevice::new(1 << 20);
        device
            .write_at(200 << 10, &[&ZFS_MAGIC.to_be_bytes()])
            .unwrap();
        assert_eq!(probe(&device).unwrap().unwrap().name, "ZFS");
    }

    #[test]
    fn zeros_text_and_short_devices_are_nothing() {
        assert_eq!(probe(&MemDevice::new(4096)).unwrap(), None);
        assert_eq!(probe(&MemDevice::new(1 << 20)).unwrap(), None);
        let device = MemDevice::from_image(&b"some text ".repeat(10_000));
        assert_eq!(probe(&device).unwrap(), None);
    }

    #[test]
    fn a_new_volume_is_told_from_what_was_there() {
        let device = MemDevice::new(crate::VOLUME_BYTES_MIN);
        for known in KNOWN {
            for &at in known.at {
                device.write_at(at, &[known.bytes]).unwrap();
            }
        }
        let options = crate::FormatOptions::default();
        crate::Volume::format(&device, &options, &mut |_, _| ()).unwrap();
        assert_eq!(probe(&device).unwrap().unwrap().name, "StitchFS");
        device.write_at(0, &[&[0; 8]]).unwrap();
        device.write_at(4096, &[&[0; 8]]).unwrap();
        assert_eq!(probe(&device).unwrap(), None, "nothing else was left");
    }
}
