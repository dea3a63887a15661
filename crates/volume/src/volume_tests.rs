//! Tests of formatting and opening volumes, and of blocks.

use crate::testing::{fresh, open, open_read_only};
use crate::{BlockKind, FormatOptions, OpenOptions, Stream, Volume, VolumeError};
use stitch_base::sync::Arc;
use stitch_base::{ErrorKind, Generation};
use stitch_device::{Device, Fault, FaultDevice, FaultOp, MemDevice};
use stitch_format::block::HEADER_BYTES;
use stitch_format::superblock::{COPIES, FEATURE_PINS, Superblock};

#[test]
fn default_areas_grow_with_the_volume() {
    let areas = |bytes: u64| FormatOptions::default().areas(bytes).unwrap();
    let small = areas(16 << 20);
    assert_eq!(small.version_log_bytes, 512 << 10);
    assert_eq!(small.backup_log_bytes, 2 << 20);
    assert_eq!(small.zone_bytes, 256 << 10);
    let middle = areas(1 << 30);
    assert_eq!(middle.version_log_bytes, 8 << 20);
    assert_eq!(middle.backup_log_bytes, 32 << 20);
    assert_eq!(middle.zone_bytes, 8 << 20);
    let odd = areas((100 << 20) + 12_345);
    assert_eq!(odd.zone_bytes, 2 << 20);
    assert_eq!(odd.device_bytes, (100 << 20) + 12_288);
    let large = areas(1 << 44);
    assert_eq!(large.version_log_bytes, 64 << 20);
    assert_eq!(large.backup_log_bytes, 256 << 20);
}

#[test]
fn impossible_volumes_are_refused() {
    let device = MemDevice::new(16 << 20);
    let refused = [
        FormatOptions {
            zone_bytes: Some(3 << 20),
            ..FormatOptions::default()
        },
        FormatOptions {
            zone_bytes: Some(1024),
            ..FormatOptions::default()
        },
        FormatOptions {
            zone_bytes: Some(1 << 63),
            ..FormatOptions::default()
        },
        FormatOptions {
            version_log_bytes: Some(1000),
            ..FormatOptions::default()
        },
        FormatOptions {
            backup_log_bytes: Some(1 << 30),
            ..FormatOptions::default()
        },
        FormatOptions {
            backup_log_bytes: Some(u64::MAX - 4095),
            ..FormatOptions::default()
        },
        FormatOptions {
            label: "x".repeat(65),
            ..FormatOptions::default()
        },
        FormatOptions {
            label: "a\0b".to_owned(),
            ..FormatOptions::default()
        },
    ];
    for options in refused {
        let error = Volume::format(&device, &options, &mut |_, _| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{options:?}");
    }
    let device = MemDevice::new((16 << 20) - 4096);
    let error = Volume::format(&device, &FormatOptions::default(), &mut |_, _| ()).unwrap_err();
    assert!(error.to_string().contains("16 MiB"), "{error}");
}

#[test]
fn making_a_volume_tells_its_progress_and_syncs() {
    let device = MemDevice::new(64 << 20);
    let mut last = (0, 1);
    Volume::format(&device, &FormatOptions::default(), &mut |done, total| {
        assert!(done > last.0, "progress goes up");
        last = (done, total);
    })
    .unwrap();
    assert_eq!(last.0, last.1);
    assert_eq!(device.counters().syncs, 3);
}

#[test]
fn a_half_made_volume_is_none() {
    let mut nth = 1;
    loop {
        let device = FaultDevice::new(fresh());
        device.add(Fault::from(FaultOp::Any, nth));
        let result = Volume::format(&device, &FormatOptions::default(), &mut |_, _| ());
        device.clear();
        if result.is_ok() {
            break;
        }
        let is_through = matches!(Volume::identify(&device), Ok(s) if s.label.is_empty());
        let is_none = matches!(
            Volume::identify(&device),
            Err(VolumeError::NotAVolume { .. })
        );
        let is_old = matches!(Volume::identify(&device), Ok(s) if s.label == "test");
        assert!(is_none || is_through || (is_old && nth == 1), "call {nth}");
        nth += 1;
    }
    assert!(nth > 5);
}

#[test]
fn a_volume_has_an_identity() {
    let opened = open(&Arc::new(fresh())).unwrap();
    assert_eq!(&opened.volume.superblock().uuid, b"0123456789abcdef");
    assert_eq!(opened.volume.superblock().label, "test");
    assert!(!opened.volume.is_read_only());
}

#[test]
fn each_open_for_writing_takes_a_generation() {
    let device = Arc::new(fresh());
    for generation in 1..5 {
        let opened = open(&device).unwrap();
        assert_eq!(opened.volume.generation(), Generation(generation));
        drop(opened);
        let opened = open_read_only(&device).unwrap();
        assert_eq!(opened.volume.generation(), Generation(generation));
    }
}

#[test]
fn one_damaged_superblock_is_repaired_and_two_are_refused() {
    for address in COPIES {
        let device = Arc::new(FaultDevice::new(fresh()));
        device.corrupt(address + 40, 1).unwrap();
        drop(open_read_only(&device).unwrap());
        drop(open(&device).unwrap());
        for copy in COPIES {
            let mut bytes = vec![0; 4096];
            device.read_at(copy, &mut bytes).unwrap();
            let superblock = Superblock::decode(&bytes, copy).unwrap().unwrap();
            assert_eq!(superblock.generation, Generation(1));
        }
        device.corrupt(COPIES[0] + 40, 1).unwrap();
        device.corrupt(COPIES[1] + 40, 1).unwrap();
        let error = open(&device).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let name = device.geometry().name;
        assert!(error.to_string().starts_with(&name), "{error}");
    }
}

#[test]
fn another_file_system_is_named_without_advice_to_overwrite_it() {
    let device = MemDevice::new(16 << 20);
    device
        .write_at(0, &[&[0; 1080], b"\x53\xef", &[0; 3014]])
        .unwrap();
    let error = Volume::identify(&device).unwrap_err().to_string();
    assert!(
        error.ends_with("holds ext2, ext3 or ext4, not StitchFS"),
        "{error}"
    );
    assert!(!error.contains("mkfs"), "{error}");
}

#[test]
fn the_newer_superblock_wins() {
    let device = Arc::new(fresh());
    let mut old = vec![0; 4096];
    device.read_at(0, &mut old).unwrap();
    drop(open(&device).unwrap());
    device.write_at(0, &[&old]).unwrap();
    assert_eq!(open(&device).unwrap().volume.generation(), Generation(2));
}

#[test]
fn a_shortened_device_is_refused() {
    let device = Arc::new(FaultDevice::shortened(fresh(), (16 << 20) - 4096));
    let error = open(&device).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("end of the device"), "{error}");
    let empty: Arc<dyn Device> = Arc::new(MemDevice::new(1 << 20));
    let error = Volume::open(empty, &OpenOptions::default()).unwrap_err();
    assert!(matches!(error, VolumeError::NotAVolume { .. }));
}

fn with_superblock(change: impl Fn(&mut Superblock)) -> Arc<MemDevice> {
    let device = fresh();
    for address in COPIES {
        let mut bytes = vec![0; 4096];
        device.read_at(address, &mut bytes).unwrap();
        let mut superblock = Superblock::decode(&bytes, address).unwrap().unwrap();
        change(&mut superblock);
        device
            .write_at(address, &[&superblock.encode(address)])
            .unwrap();
    }
    Arc::new(device)
}

#[test]
fn features_decide_what_an_unknown_program_may_do() {
    let compatible = with_superblock(|s| s.compatible = 1 << 40);
    drop(open(&compatible).unwrap());
    let read_only = with_superblock(|s| s.read_only = 1);
    assert_eq!(open(&read_only).unwrap_err().kind(), ErrorKind::Unsupported);
    drop(open_read_only(&read_only).unwrap());
    let incompatible = with_superblock(|s| s.incompatible = 1 << 63);
    assert_eq!(
        open_read_only(&incompatible).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
}

#[test]
fn versions_decide_which_programs_may_read() {
    let newer_minor = with_superblock(|s| s.version = (2, 9));
    assert_eq!(
        open(&newer_minor).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    drop(open_read_only(&newer_minor).unwrap());
    let newer_major = with_superblock(|s| s.version = (3, 0));
    let error = open_read_only(&newer_major).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("newer"), "{error}");
    let older_major = with_superblock(|s| (s.version, s.readable) = ((1, 0), (1, 0)));
    let error = open_read_only(&older_major).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("1.0"), "{error}");
    let not_readable = with_superblock(|s| (s.version, s.readable) = ((2, 9), (2, 9)));
    assert_eq!(
        open(&not_readable).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
}

#[test]
fn generations_do_not_run_over() {
    let worn = with_superblock(|s| s.generation = Generation(u64::from(u32::MAX) - 1));
    assert_eq!(open(&worn).unwrap_err().kind(), ErrorKind::Unsupported);
    drop(open_read_only(&worn).unwrap());
}

fn block(volume: &Volume, payload: &[u8]) -> (u64, Vec<u8>) {
    let mut buffer = vec![0xff; HEADER_BYTES];
    buffer.extend_from_slice(payload);
    let len = stitch_format::block::block_bytes(payload.len() as u64);
    let addr = volume.zones().allocate(len, len, Stream(0)).unwrap().addr;
    volume.seal_block(&mut buffer, BlockKind::TableData, 3, addr);
    assert_eq!(buffer.len() as u64, len);
    volume.write(addr, &[&buffer]).unwrap();
    (addr, buffer)
}

#[test]
fn blocks_come_back_with_their_flags() {
    let opened = open(&Arc::new(fresh())).unwrap();
    let volume = &opened.volume;
    for len in [0, 1, 480, 481, 100_000] {
        let payload = vec![9; len];
        let (addr, buffer) = block(volume, &payload);
        let read = volume
            .read_block(addr, buffer.len() as u64, BlockKind::TableData)
            .unwrap();
        assert_eq!(read.payload(), payload);
        assert_eq!(
            (read.header().flags, read.header().generation),
            (3, Generation(1))
        );
        assert_eq!(read.into_payload(), payload);
    }
}

#[test]
fn a_wrong_block_is_an_error_that_says_what_and_where() {
    let device = Arc::new(FaultDevice::new(fresh()));
    let opened = open(&device).unwrap();
    let volume = &opened.volume;
    let (addr, buffer) = block(volume, b"payload");
    let len = buffer.len() as u64;
    let refuse = |addr, len, kind| {
        let error = volume.read_block(addr, len, kind).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        error.to_string()
    };
    assert!(refuse(addr, len, BlockKind::TableIndex).contains("kind"));
    assert!(refuse(addr, len * 2, BlockKind::TableData).contains("payload_len"));
    assert!(refuse(addr + 512, len, BlockKind::TableData).contains("magic"));
    assert!(refuse(addr + 1, len, BlockKind::TableData).contains("sectors"));
    assert!(refuse(0, len, BlockKind::TableData).contains("zones"));
    assert!(refuse(u64::MAX - 511, 512, BlockKind::TableData).contains("zones"));
    let elsewhere = volume.zones().allocate(len, len, Stream(0)).unwrap();
    assert_eq!(elsewhere.addr, addr + 4096);
    volume.write(addr + 4096, &[&buffer]).unwrap();
    let misdirected = refuse(addr + 4096, len, BlockKind::TableData);
    assert!(misdirected.contains("address"), "{misdirected}");
    assert!(misdirected.contains(&format!("table data block at byte {}", addr + 4096)));
    for offset in 0..len {
        device.corrupt(addr + offset, 0x10).unwrap();
        refuse(addr, len, BlockKind::TableData);
        device.corrupt(addr + offset, 0x10).unwrap();
    }
    volume.read_block(addr, len, BlockKind::TableData).unwrap();
}

#[test]
fn a_block_of_an_earlier_volume_is_not_taken_for_one_of_this() {
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    let (addr, buffer) = block(&opened.volume, b"payload");
    drop(opened);
    Volume::format(&*device, &FormatOptions::default(), &mut |_, _| ()).unwrap();
    let opened = open(&device).unwrap();
    let len = buffer.len() as u64;
    let error = opened
        .volume
        .read_block(addr, len, BlockKind::TableData)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn a_failed_write_of_data_is_told_and_does_not_poison() {
    let device = Arc::new(FaultDevice::new(fresh()));
    let opened = open(&device).unwrap();
    let volume = &opened.volume;
    let addr = volume.zones().allocate(4096, 4096, Stream(0)).unwrap().addr;
    device.add(Fault::once(FaultOp::Write, device.calls().writes + 1));
    let error = volume.write(addr, &[&[1; 4096]]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(!volume.is_poisoned());
    volume.write(addr, &[&[1; 4096]]).unwrap();
}

#[test]
fn a_feature_is_in_both_copies_when_it_is_needed() {
    let device = with_superblock(|s| s.incompatible = 0);
    let opened = open(&device).unwrap();
    for _ in 0..2 {
        opened.volume.require_feature(FEATURE_PINS).unwrap();
        for address in COPIES {
            let mut bytes = vec![0; 4096];
            device.read_at(address, &mut bytes).unwrap();
            let copy = Superblock::decode(&bytes, address).unwrap().unwrap();
            assert_eq!(copy.incompatible, FEATURE_PINS);
        }
    }
    opened.volume.close().unwrap();
    drop(opened);
    let opened = open_read_only(&device).unwrap();
    opened.volume.require_feature(FEATURE_PINS).unwrap();
}

#[test]
fn a_format_is_raised_when_it_is_needed_and_for_good() {
    let device = with_superblock(|s| (s.version, s.readable) = ((2, 0), (2, 0)));
    let format = || {
        let found = Volume::identify(&*device).unwrap();
        (found.version, found.readable)
    };
    let opened = open(&device).unwrap();
    opened.volume.close().unwrap();
    drop(opened);
    assert_eq!(format(), ((2, 0), (2, 0)), "no other format was required");
    let opened = open(&device).unwrap();
    opened.volume.require_format((2, 0)).unwrap();
    assert_eq!(format(), ((2, 0), (2, 0)));
    opened.volume.require_format((2, 1)).unwrap();
    for address in COPIES {
        let mut bytes = vec![0; 4096];
        device.read_at(address, &mut bytes).unwrap();
        let copy = Superblock::decode(&bytes, address).unwrap().unwrap();
        assert_eq!((copy.version, copy.readable), ((2, 1), (2, 1)));
    }
    opened.volume.close().unwrap();
    drop(opened);
    drop(open(&device).unwrap());
    assert_eq!(format(), ((2, 1), (2, 1)));
    let opened = open_read_only(&device).unwrap();
    opened.volume.require_format((2, 1)).unwrap();
}

#[test]
fn a_log_is_closed_by_its_last_writer_until_another_life_writes_or_closes() {
    let device = Arc::new(fresh());
    let life = |appends: bool, closes: bool| {
        let opened = open(&device).unwrap();
        let log = opened.volume.log();
        let before = log.is_closed_by_last_writer().unwrap();
        if appends {
            log.append(&[b"record"]).unwrap();
        }
        if closes {
            opened.volume.close().unwrap();
        }
        before
    };
    let read_only = || {
        let opened = open_read_only(&device).unwrap();
        opened.volume.log().is_closed_by_last_writer().unwrap()
    };
    assert!(!life(false, true), "it is new");
    assert!(
        !life(true, true),
        "nothing was written by the life that closed it"
    );
    assert!(read_only() && read_only());
    assert!(life(false, true));
    assert!(!read_only(), "another life closed it");
    assert!(!life(true, false));
    assert!(!life(true, true), "a life was not closed");
    assert!(life(false, false));
    assert!(!read_only(), "another life began");
}
