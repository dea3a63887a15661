//! Changes to a file that other processes have open, one test for each kind of change: on a mount
//! and, for comparison, in a plain directory.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};

use super::pattern;
use crate::harness::context::Context;
use crate::harness::map::Map;
use crate::harness::user::{NOBODY, acting_as};

const LEN: usize = 300_000;

/// What was seen, to be compared.
struct Scene {
    dir: PathBuf,
    seen: Vec<String>,
}

type Act = fn(&mut Scene) -> Result<()>;

const ACTS: &[(&str, Act)] = &[
    ("a writer comes while it is read", a_writer_comes),
    ("a reader comes while it is written", a_reader_comes),
    ("it becomes large while it is open", it_becomes_large),
    (
        "it is cut to nothing while it is open",
        it_is_cut_to_nothing,
    ),
    (
        "it is opened with O_TRUNC while it is read",
        it_is_opened_to_nothing,
    ),
    ("it is cut and grows by its name", it_is_resized),
    ("it is removed while it is open", it_is_removed),
    ("another takes its name", it_is_replaced),
    ("it is mapped, closed and changed", it_is_mapped),
    (
        "it is mapped to be written while it is read",
        it_is_mapped_to_be_written,
    ),
    (
        "it is mapped when it is written first",
        it_is_mapped_by_its_writer,
    ),
    ("it is appended to while it is read", it_is_appended_to),
    ("holes are made while it is read", it_gets_holes),
    ("it is read past the page cache", it_is_read_directly),
    ("it is copied by the kernel", it_is_copied),
    ("it is run and changed", it_is_run),
    ("it has no name", it_has_no_name),
    ("it loses its set-id bits", it_loses_set_id_bits),
];

/// Runs each act on a mount and in a plain directory, twice on the same mount.
pub(super) fn open_files_show_what_a_plain_directory_shows(context: &Context) -> Result<()> {
    let mut mount = super::mount(context, "pt-modes")?;
    let plain = context.dir("pt-modes-plain")?;
    for (name, act) in ACTS {
        for round in 0..2 {
            let expected = play(&plain, *act).with_context(|| format!("{name}, plain"))?;
            let found =
                play(mount.dir(), *act).with_context(|| format!("{name}, round {round}"))?;
            ensure!(
                found == expected,
                "{name}, round {round}: saw {found:#?} where a plain directory shows {expected:#?}"
            );
        }
    }
    println!("      {} acts", ACTS.len());
    fs::remove_dir_all(&plain)?;
    mount.unmount()?;
    mount.fsck()
}

fn play(dir: &Path, act: Act) -> Result<Vec<String>> {
    let mut scene = Scene {
        dir: dir.join("act"),
        seen: Vec::new(),
    };
    fs::create_dir(&scene.dir)?;
    fs::write(scene.path(), pattern(LEN))?;
    act(&mut scene)?;
    fs::remove_dir_all(&scene.dir)?;
    Ok(scene.seen)
}

impl Scene {
    fn path(&self) -> PathBuf {
        self.dir.join("file")
    }

    fn reader(&self) -> Result<File> {
        File::open(self.path()).context("open to read")
    }

    fn writer(&self) -> Result<File> {
        let writer = OpenOptions::new().read(true).write(true).open(self.path());
        writer.context("open to write")
    }

    /// Notes what a file has, as `pread` from the start and `fstat` see it.
    fn see(&mut self, what: &str, file: &File) -> Result<()> {
        let mut bytes = Vec::new();
        let mut piece = vec![0; 70_000];
        loop {
            let count = file.read_at(&mut piece, bytes.len() as u64);
            let count = count.with_context(|| format!("{what}: read"))?;
            if count == 0 {
                break;
            }
            bytes.extend_from_slice(&piece[..count]);
        }
        let size = file.metadata()?.size();
        let sum = xxhash_rust::xxh3::xxh3_64(&bytes);
        self.seen
            .push(format!("{what}: {size}, {} read, {sum:x}", bytes.len()));
        Ok(())
    }

    /// The same of a file that is opened now.
    fn see_new(&mut self, what: &str) -> Result<()> {
        let file = self.reader().with_context(|| what.to_owned())?;
        self.see(what, &file)
    }

    fn note(&mut self, what: &str, value: impl std::fmt::Debug) {
        self.seen.push(format!("{what}: {value:?}"));
    }
}

fn a_writer_comes(scene: &mut Scene) -> Result<()> {
    let reader = scene.reader()?;
    scene.see("before", &reader)?;
    let writer = scene.writer()?;
    writer.write_all_at(b"written", 1000)?;
    scene.see("by the reader", &reader)?;
    scene.see("by the writer", &writer)?;
    writer.write_all_at(&[9; 5000], LEN as u64 + 3000)?;
    scene.see("grown, by the reader", &reader)?;
    let only = OpenOptions::new().write(true).open(scene.path())?;
    only.write_all_at(b"again", 5)?;
    drop(writer);
    scene.see("by the reader, later", &reader)?;
    drop(reader);
    only.write_all_at(b"and again", 50)?;
    scene.see_new("by a new reader")?;
    drop(only);
    scene.see_new("by the last reader")
}

fn a_reader_comes(scene: &mut Scene) -> Result<()> {
    let writer = scene.writer()?;
    writer.write_all_at(b"one", 0)?;
    let reader = scene.reader()?;
    scene.see("by the reader", &reader)?;
    writer.write_all_at(b"two", 100_000)?;
    scene.see("by the reader, later", &reader)?;
    writer.sync_all()?;
    drop(writer);
    let second = scene.reader()?;
    scene.see("by the second", &second)?;
    drop(reader);
    let third = scene.reader()?;
    drop(second);
    scene.see("by the third", &third)?;
    drop(third);
    scene.see_new("by the last")
}

fn it_becomes_large(scene: &mut Scene) -> Result<()> {
    fs::write(scene.path(), b"small")?;
    let reader = scene.reader()?;
    scene.see("small", &reader)?;
    let mut writer = scene.writer()?;
    for _ in 0..5 {
        writer.write_all(&pattern(30_000))?;
        scene.see("growing", &reader)?;
    }
    scene.see_new("by a new reader")?;
    drop(writer);
    let second = scene.reader()?;
    drop(reader);
    scene.see("by the second", &second)?;
    drop(second);
    scene.see_new("by the last")
}

fn it_is_cut_to_nothing(scene: &mut Scene) -> Result<()> {
    let reader = scene.reader()?;
    let writer = scene.writer()?;
    writer.set_len(0)?;
    scene.see("nothing, by the reader", &reader)?;
    scene.see_new("nothing, by a new one")?;
    writer.write_all_at(b"a few bytes", 0)?;
    scene.see("small, by the reader", &reader)?;
    scene.see_new("small, by a new one")?;
    writer.write_all_at(&pattern(100_000), 0)?;
    scene.see("large, by the reader", &reader)?;
    drop((writer, reader));
    scene.see_new("large, by a new one")?;
    // The file is not open.
    OpenOptions::new()
        .write(true)
        .open(scene.path())?
        .set_len(0)?;
    fs::write(scene.path(), b"small")?;
    scene.see_new("small")
}

fn it_is_opened_to_nothing(scene: &mut Scene) -> Result<()> {
    let reader = scene.reader()?;
    let mut writer = File::create(scene.path())?;
    scene.see("nothing", &reader)?;
    writer.write_all(&pattern(200_000))?;
    scene.see("new", &reader)?;
    let second = File::create(scene.path())?;
    writer.write_all(b"behind a hole")?;
    scene.see("with a hole", &reader)?;
    drop((reader, writer, second));
    scene.see_new("later")
}

fn it_is_resized(scene: &mut Scene) -> Result<()> {
    let reader = scene.reader()?;
    for len in [200_001, 70_000, 250_000, 5, 90_000, 400_000, 1, 0, 66_000] {
        let path = scene.path();
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(len)?;
        scene.see(&format!("{len}"), &reader)?;
        drop(file);
        scene.see_new(&format!("{len}, new"))?;
    }
    Ok(())
}

fn it_is_removed(scene: &mut Scene) -> Result<()> {
    let reader = scene.reader()?;
    let writer = scene.writer()?;
    fs::remove_file(scene.path())?;
    scene.see("by the reader", &reader)?;
    writer.write_all_at(b"still", 0)?;
    scene.see("by the reader, later", &reader)?;
    writer.set_len(100)?;
    scene.see("cut", &reader)?;
    fs::write(scene.path(), b"another")?;
    scene.see("not the other", &reader)?;
    scene.see_new("the other")
}

fn it_is_replaced(scene: &mut Scene) -> Result<()> {
    let reader = scene.reader()?;
    let other = scene.dir.join("other");
    fs::write(&other, pattern(150_000))?;
    fs::rename(&other, scene.path())?;
    scene.see("the old one", &reader)?;
    scene.see_new("the new one")?;
    let newer = scene.reader()?;
    fs::write(&other, b"small")?;
    fs::rename(&other, scene.path())?;
    scene.see("the second", &newer)?;
    scene.see_new("the third")
}

fn it_is_mapped(scene: &mut Scene) -> Result<()> {
    let map = Map::new(&scene.reader()?, LEN, false)?;
    scene.note("mapped", map.read(1000, 8)?);
    let writer = scene.writer()?;
    writer.write_all_at(b"written", 1000)?;
    scene.note("written", map.read(1000, 8)?);
    writer.set_len(150_000)?;
    // The rest of the last page is zeros.
    scene.note("cut", map.read(149_990, 20)?);
    writer.set_len(200_000)?;
    scene.note("grown", map.read(149_990, 5000)?);
    drop(writer);
    scene.see_new("by a new reader")?;
    fs::write(scene.path(), pattern(LEN))?;
    scene.note("new", map.read(1000, 8)?);
    scene.see_new("new, by a new reader")
}

fn it_is_mapped_to_be_written(scene: &mut Scene) -> Result<()> {
    let reader = scene.reader()?;
    let writer = scene.writer()?;
    let map = Map::new(&writer, LEN, true)?;
    map.write(10, b"mapped")?;
    scene.see("by the reader", &reader)?;
    scene.see("by the writer", &writer)?;
    writer.write_all_at(b"written", 12)?;
    scene.note("by the mapping", map.read(0, 30)?);
    drop((writer, reader));
    map.write(200_000, b"without a file")?;
    scene.see_new("by a new reader")?;
    let other = scene.writer()?;
    scene.see("by a new writer", &other)?;
    other.set_len(100_000)?;
    other.set_len(LEN as u64)?;
    scene.note("zeros", map.read(199_990, 30)?);
    map.write(100_000, b"x")?;
    map.sync()?;
    scene.see("by a new writer, later", &other)?;
    drop(map);
    other.sync_all()?;
    drop(other);
    scene.see_new("by the last reader")
}

fn it_is_mapped_by_its_writer(scene: &mut Scene) -> Result<()> {
    let writer = scene.writer()?;
    let map = Map::new(&writer, LEN, true)?;
    drop(writer);
    map.write(10, b"mapped")?;
    let reader = scene.reader()?;
    map.sync()?;
    scene.see("by a reader", &reader)?;
    drop(map);
    let second = scene.reader()?;
    scene.see("by a second", &second)?;
    drop((reader, second));
    scene.see_new("by the last")
}

fn it_is_appended_to(scene: &mut Scene) -> Result<()> {
    let mut reader = scene.reader()?;
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes)?;
    let mut one = OpenOptions::new().append(true).open(scene.path())?;
    let mut two = OpenOptions::new()
        .append(true)
        .read(true)
        .open(scene.path())?;
    for round in 0..5_u8 {
        one.write_all(&[round; 1000])?;
        two.write_all(&[round; 3000])?;
        bytes.clear();
        reader.read_to_end(&mut bytes)?;
        scene.note(
            "new",
            (bytes.len(), bytes.first().copied(), bytes.last().copied()),
        );
    }
    scene.see("all", &two)
}

fn it_gets_holes(scene: &mut Scene) -> Result<()> {
    let reader = scene.reader()?;
    let writer = scene.writer()?;
    let keep = FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&writer, FallocateFlags::PUNCH_HOLE | keep, 8192, 100_000)?;
    scene.see("with a hole", &reader)?;
    let data = rustix::fs::seek(&reader, SeekFrom::Data(10_000))?;
    let hole = rustix::fs::seek(&reader, SeekFrom::Hole(150_000))?;
    scene.note("data and hole", (data / 4096, hole));
    rustix::fs::fallocate(&writer, FallocateFlags::empty(), 0, 400_000)?;
    scene.see("longer", &reader)?;
    rustix::fs::fallocate(&writer, FallocateFlags::ZERO_RANGE, 390_000, 20_000)?;
    scene.see("longer still", &reader)?;
    // Refused by the file system that a plain file lies in; a file in the store may be as long.
    let _ = writer.set_len(i64::MAX.unsigned_abs());
    writer.set_len(10)?;
    scene.see("short", &reader)
}

fn it_is_read_directly(scene: &mut Scene) -> Result<()> {
    let direct = OFlags::DIRECT.bits().cast_signed();
    let reader = scene.reader()?;
    let past = OpenOptions::new()
        .read(true)
        .custom_flags(direct)
        .open(scene.path())?;
    let both = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(direct)
        .open(scene.path())?;
    let mut space = vec![0; 16_384];
    // Aligned as hosts require.
    let from = space.as_ptr().align_offset(4096);
    for file in [&past, &both] {
        let count = file.read_at(&mut space[from..from + 8192], 4096)?;
        scene.note("read", (count, space[from..from + 100].to_vec()));
    }
    scene.see("by the other", &reader)?;
    drop((reader, past));
    scene.see_new("by a new one")
}

fn it_is_copied(scene: &mut Scene) -> Result<()> {
    let copy = scene.dir.join("copy");
    let mut reader = scene.reader()?;
    let mut target = File::create(&copy)?;
    scene.note("copied", std::io::copy(&mut reader, &mut target)?);
    let held = File::open(&copy)?;
    drop(target);
    scene.see("the copy", &held)?;
    let writer = OpenOptions::new().write(true).open(&copy)?;
    let count = rustix::fs::copy_file_range(
        &scene.reader()?,
        Some(&mut 5),
        &writer,
        Some(&mut 290_000),
        50_000,
    )?;
    scene.note("copied over", count);
    scene.see("the copy, longer", &held)?;
    drop((held, writer));
    let again = File::open(&copy)?;
    scene.see("the copy, later", &again)
}

fn it_is_run(scene: &mut Scene) -> Result<()> {
    let shell = fs::canonicalize("/bin/sh")?;
    fs::copy(&shell, scene.path())?;
    fs::set_permissions(scene.path(), Permissions::from_mode(0o755))?;
    for round in 0..3 {
        let code = Command::new(scene.path())
            .args(["-c", "exit 7"])
            .status()?
            .code();
        scene.note("ended", code);
        let mut running = Command::new(scene.path())
            .args(["-c", "read x"])
            .stdin(std::process::Stdio::piped())
            .spawn()?;
        let busy = scene
            .writer()
            .map(drop)
            .map_err(|e| format!("{:?}", e.root_cause().to_string()));
        scene.note("busy", busy);
        drop(running.stdin.take());
        running.wait()?;
        scene.note("free", scene.writer().is_ok());
        scene.note("round", round);
    }
    Ok(())
}

fn it_has_no_name(scene: &mut Scene) -> Result<()> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlags::TMPFILE.bits().cast_signed())
        .open(&scene.dir)?;
    file.write_all(&pattern(150_000))?;
    scene.see("without a name", &file)?;
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let second = File::open(&link)?;
    scene.see("by a reader", &second)?;
    drop(file);
    scene.see("by the last", &second)?;
    let third = File::open(format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&second)
    ))?;
    drop(second);
    scene.see("by another", &third)
}

fn it_loses_set_id_bits(scene: &mut Scene) -> Result<()> {
    let reader = scene.reader()?;
    fs::set_permissions(scene.path(), Permissions::from_mode(0o6777))?;
    // By a caller who may not keep them.
    let path = scene.path();
    let append = || {
        let file = OpenOptions::new().append(true).open(&path);
        file.and_then(|mut file| file.write_all(b"x"))
    };
    acting_as(Some(NOBODY), append)??;
    scene.note("mode", format!("{:o}", reader.metadata()?.mode()));
    scene.see("by the reader", &reader)
}
