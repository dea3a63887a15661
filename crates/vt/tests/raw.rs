//! The engine on a block device, in each way to read and write one: killed, and with faults.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{MIB, Setup, format, open};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use stitch_base::random::Rng;
use stitch_device::{DeviceError, Fault, FaultDevice, FaultOp, IoMode, OpenOptions, RawDevice};
use stitch_kv::{Batch, CommitOptions, Direction, Engine, KeyRange, TreeOptions};
use stitch_volume::Volume;
use stitch_vt::VtEngine;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A loop device over a temporary file, detached when dropped.
struct Loop {
    path: PathBuf,
    _backing: tempfile::NamedTempFile,
}

impl Loop {
    fn attach(len_bytes: u64) -> Option<Self> {
        let backing = tempfile::NamedTempFile::new().unwrap();
        backing.as_file().set_len(len_bytes).unwrap();
        let attach = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(backing.path())
            .output()
            .ok()?;
        let path = String::from_utf8(attach.stdout).unwrap().trim().to_owned();
        (attach.status.success() && !path.is_empty()).then(|| Self {
            path: path.into(),
            _backing: backing,
        })
    }

    fn open(&self, io: IoMode) -> Option<RawDevice> {
        let options = OpenOptions {
            io,
            ..OpenOptions::default()
        };
        match RawDevice::open(&self.path, options) {
            Ok(device) => Some(device),
            Err(DeviceError::Unsuitable { reason, .. }) => {
                eprintln!("SKIP {io:?}: {reason}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.path).status();
    }
}

fn contents(engine: &VtEngine) -> Model {
    let tree = engine.trees()[0].id;
    let all = KeyRange::from(&[][..]);
    let mut scan = engine.scan(tree, all, Direction::Forward, None).unwrap();
    let mut out = Model::new();
    while let Some((key, value)) = scan.next().unwrap() {
        out.insert(key.to_vec(), value.to_vec());
    }
    out
}

/// Writes until something fails or all is done. What fails may have happened or not.
fn live(engine: &VtEngine, model: &mut Model, rng: &mut Rng) -> Option<(Vec<u8>, Vec<u8>)> {
    let tree = engine.trees()[0].id;
    for step in 0..600 {
        let key = rng.below(3000).to_be_bytes().to_vec();
        let long = if rng.one_in(50) { 100_000 } else { 2000 };
        let mut value = vec![0; usize::try_from(rng.below(long)).unwrap()];
        rng.fill(&mut value);
        let mut batch = Batch::new();
        batch.put(tree, &key, &value);
        let options = CommitOptions {
            sync: rng.one_in(40),
            ..CommitOptions::default()
        };
        if engine.commit(&batch, options).is_err() {
            return Some((key, value));
        }
        model.insert(key, value);
        let probe = rng.below(3000).to_be_bytes();
        if let Ok(found) = engine.get(tree, &probe, None) {
            assert_eq!(found.as_deref(), model.get(&probe[..]).map(Vec::as_slice));
        }
        if step % 7 == 0 && engine.step().is_err() {
            return None;
        }
    }
    None
}

#[test]
fn what_was_acknowledged_is_there_whatever_the_way_and_whatever_fails() {
    let Some(disk) = Loop::attach(96 * MIB) else {
        eprintln!("SKIP: no loop device to be had here");
        return;
    };
    let setup = Setup::sized(128 << 10, 256 << 10, false).direct(64 << 10);
    for io in [IoMode::Auto, IoMode::Buffered, IoMode::Direct, IoMode::Ring] {
        let Some(device) = disk.open(io) else {
            continue;
        };
        format(&device, Some(4 * MIB));
        let device = Arc::new(FaultDevice::new(device));
        let engine = open(device.clone(), setup.options.clone());
        engine.create_tree("tree", &TreeOptions::default()).unwrap();
        drop(engine);
        let rng = &mut Rng::new(11);
        let mut model = Model::new();
        for life in 0..12 {
            let engine = open(device.clone(), setup.options.clone());
            assert_eq!(contents(&engine), model, "{io:?}, life {life}");
            let calls = device.calls();
            let fault = match life % 4 {
                1 => Some(Fault::once(
                    FaultOp::Write,
                    calls.writes + rng.below(700) + 1,
                )),
                2 => Some(Fault::once(FaultOp::Sync, calls.syncs + rng.below(20) + 1)),
                3 => Some(Fault::once(FaultOp::Read, calls.reads + rng.below(200) + 1)),
                _ => None,
            };
            fault.into_iter().for_each(|fault| device.add(fault));
            let unsure = live(&engine, &mut model, rng);
            device.clear();
            drop(engine);
            if let Some((key, value)) = unsure {
                let engine = open(device.clone(), setup.options.clone());
                let tree = engine.trees()[0].id;
                let found = engine.get(tree, &key, None).unwrap();
                if found.as_deref() == Some(&value[..]) {
                    model.insert(key, value);
                }
            }
        }
        let engine = open(device.clone(), setup.options.clone());
        engine.quiesce().unwrap();
        assert_eq!(engine.check(&mut |_, _| {}).unwrap(), []);
        engine.close().unwrap();
        drop(engine);
        // In whatever way it was written, any other reads it.
        drop(device);
        let device = Arc::new(disk.open(IoMode::Buffered).unwrap());
        let opened = Volume::open(device, &stitch_volume::OpenOptions::default()).unwrap();
        let engine = VtEngine::open(opened, setup.options.clone()).unwrap();
        assert_eq!(contents(&engine), model, "{io:?}");
    }
}
