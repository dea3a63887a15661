//! Streams and archives in pipes.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::mounted;
use crate::mounted::Mounted;
use crate::place::STITCHFS;

const RECORD_BYTES: usize = 10_240;
/// Bytes of a packet in a pipe that keeps writes apart.
const PACKET_BYTES: usize = 4096;
const SNAPSHOT: &str = "mnt/.stitchfs/snap/mon";

/// A mount with a snapshot in which lines end at odd places.
fn with_lines() -> Option<Mounted> {
    let mounted = mounted(&[])?;
    for number in 0..40 {
        let lines = "a line\n".repeat(3000 + number);
        fs::write(mounted.path(&format!("d/f{number}")), lines).unwrap();
    }
    mounted
        .place
        .run(&["snapshot", "create", "mnt/d", "mon"])
        .code(0);
    Some(mounted)
}

/// What a command writes to a pipe that keeps writes apart: its bytes, and the sizes of packets.
fn written(mounted: &Mounted, args: &[&str]) -> (Vec<u8>, Vec<usize>) {
    let (mut from, to) = std::io::pipe().unwrap();
    fcntl_setfl(&to, fcntl_getfl(&to).unwrap() | OFlags::DIRECT).unwrap();
    let mut command = Command::new(STITCHFS);
    command.args(args).current_dir(mounted.place.path(""));
    let mut child = command.stdin(Stdio::null()).stdout(to).spawn().unwrap();
    // Its copy of the end that is written to.
    drop(command);
    let (mut bytes, mut sizes) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; 2 * PACKET_BYTES];
    loop {
        let len = from.read(&mut buffer).unwrap();
        if len == 0 {
            break;
        }
        bytes.extend_from_slice(&buffer[..len]);
        sizes.push(len);
    }
    assert!(child.wait().unwrap().success());
    (bytes, sizes)
}

#[test]
fn an_archive_comes_in_whole_records() {
    let Some(mounted) = with_lines() else {
        return;
    };
    let (bytes, sizes) = written(&mounted, &["export", SNAPSHOT]);
    assert_eq!(bytes.len() % RECORD_BYTES, 0, "{}", bytes.len());
    let odd = sizes.iter().find(|size| **size % 512 > 0);
    assert_eq!(odd, None, "blocks are whole in each piece");
    let script = "mkdir out && tar -C out -xf <(\"$0\" export \"$1\") && diff -r out \"$1\"";
    let args = ["-c", script, STITCHFS, SNAPSHOT];
    mounted.place.run_as(Path::new("bash"), &args).code(0);
    mounted.umount();
}

#[test]
fn a_stream_is_written_in_large_pieces() {
    let Some(mounted) = with_lines() else {
        return;
    };
    let (bytes, sizes) = written(&mounted, &["send", SNAPSHOT]);
    let small = sizes.iter().filter(|size| **size < PACKET_BYTES).count();
    let pieces_max = bytes.len() / (128 << 10) + 2;
    assert!(
        small <= pieces_max,
        "{small} of {} pieces are small",
        sizes.len()
    );
    mounted.umount();
}
