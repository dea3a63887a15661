//! Volumes as small files: the sectors that hold anything, compressed.
//!
//! `length of the volume (8) | number (4), sector (512) | ...`, as one LZ4 block with its length
//! before it. Little-endian.

use std::fmt;
use stitch_device::{Device, MemDevice};

const SECTOR: usize = 512;

/// A file that is no image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadImage(String);

impl fmt::Display for BadImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not an image: {}", self.0)
    }
}

impl std::error::Error for BadImage {}

/// The volume as a small file.
#[must_use]
pub fn pack(device: &MemDevice) -> Vec<u8> {
    let mut out = device.geometry().len_bytes.to_le_bytes().to_vec();
    for (at, page) in device.written_pages() {
        for (index, sector) in page.chunks(SECTOR).enumerate() {
            if sector.iter().any(|&b| b != 0) {
                let number = at / SECTOR as u64 + index as u64;
                let number = u32::try_from(number).expect("an image is small");
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(sector);
            }
        }
    }
    lz4_flex::compress_prepend_size(&out)
}

/// The volume in a small file.
///
/// # Errors
/// [`BadImage`].
pub fn unpack(packed: &[u8]) -> Result<MemDevice, BadImage> {
    let bad = |what: &str| BadImage(what.to_owned());
    let bytes = lz4_flex::decompress_size_prepended(packed).map_err(|e| bad(&e.to_string()))?;
    let (len, rest) = bytes
        .split_first_chunk::<8>()
        .ok_or_else(|| bad("too short"))?;
    let device = MemDevice::new(u64::from_le_bytes(*len));
    let (sectors, tail) = rest.as_chunks::<{ SECTOR + 4 }>();
    if !tail.is_empty() {
        return Err(bad("a sector is cut"));
    }
    for sector in sectors {
        let (number, bytes) = sector.split_first_chunk::<4>().expect("a sector is longer");
        let at = u64::from(u32::from_le_bytes(*number)) * SECTOR as u64;
        device
            .write_at(at, &[bytes])
            .map_err(|e| bad(&e.to_string()))?;
    }
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_comes_back() {
        let device = MemDevice::new(1 << 20);
        device.write_at(700, &[b"bytes"]).unwrap();
        device.write_at((1 << 20) - 512, &[&[7; 512]]).unwrap();
        let packed = pack(&device);
        assert!(packed.len() < 200, "{}", packed.len());
        let back = unpack(&packed).unwrap();
        assert_eq!(back.geometry().len_bytes, 1 << 20);
        assert_eq!(back.written_pages(), device.written_pages());
        assert!(unpack(&packed[..packed.len() - 1]).is_err());
        assert!(unpack(b"").is_err());
    }
}
