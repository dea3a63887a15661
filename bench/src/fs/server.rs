//! The file server and the web server of Filebench, by our own loop (KVFS and vkFS papers).
//!
//! - File server: each thread, in files of its own of 128 KiB on average: make and write one, open
//!   one and append 16 KiB, open and read one, remove one, `stat` one.
//! - Web server: each thread opens, reads and closes ten files of 16 KiB on average, which all
//!   share, then appends 16 KiB to a log of its own.

use super::stage::{Ends, Stage};
use super::target::Target;
use super::{Caches, FsWorkload};
use crate::measure::{Op, Recorder, by_threads};
use crate::values::{Values, mix};
use anyhow::{Context as _, Result, ensure};
use std::collections::VecDeque;
use stitch_base::sync::Mutex;

const THREADS: u64 = 8;
const APPEND_BYTES: usize = 16 << 10;
/// Operations of the file server in a loop.
const OPS: u64 = 5;
/// Names in a directory.
const DIR_NAMES: u64 = 20;
const READS_PER_LOOP: u64 = 10;

pub(super) fn workloads() -> Vec<FsWorkload> {
    vec![
        FsWorkload::new(
            "file-server",
            "Filebench's file server, 8 threads: create, append, read, delete, stat",
            &[Caches::Warm],
            file_server,
        ),
        FsWorkload::new(
            "web-server",
            "Filebench's web server, 8 threads: ten reads, one append to a log",
            &[Caches::Warm, Caches::Cold],
            web_server,
        ),
    ]
}

/// From a quarter to seven quarters of the mean.
fn len_bytes(id: u64, mean: u64) -> usize {
    let len = mean / 4 + mix(id) % (mean * 3 / 2);
    usize::try_from(len).expect("files are small")
}

/// A file of a thread's own.
struct Own {
    id: u64,
    size: u64,
}

/// One thread of the file server.
struct FileServer<'a> {
    target: &'a dyn Target,
    values: &'a Values,
    thread: u64,
    files: VecDeque<Own>,
    next_id: u64,
}

const FILE_MEAN_BYTES: u64 = 128 << 10;

impl FileServer<'_> {
    fn path(&self, id: u64) -> String {
        format!("t{}-{}/f{id}", self.thread, id % DIR_NAMES)
    }

    fn set_up(&mut self, count: u64) -> Result<()> {
        for number in 0..DIR_NAMES {
            self.target
                .make_dir(&format!("t{}-{number}", self.thread))?;
        }
        for _ in 0..count {
            let (path, len) = self.next();
            self.target
                .put(&path, self.values.value(self.next_id, len))?;
            self.made(len);
        }
        Ok(())
    }

    fn next(&self) -> (String, usize) {
        let len = len_bytes(self.next_id, FILE_MEAN_BYTES);
        (self.path(self.next_id), len)
    }

    fn made(&mut self, len: usize) {
        self.files.push_back(Own {
            id: self.next_id,
            size: len as u64,
        });
        self.next_id += 1;
    }

    /// One loop: five operations. A file is appended to once, right before it is read.
    fn serve(&mut self, record: &mut Recorder<'_>) -> Result<()> {
        let (path, len) = self.next();
        let data = self.values.value(self.next_id, len);
        let target = self.target;
        record.time(Op::Write, (1, len as u64), || target.put(&path, data))?;
        self.made(len);

        let mut file = self.files.pop_front().context("there are files")?;
        let path = self.path(file.id);
        let more = self.values.value(file.id, APPEND_BYTES);
        record.time(Op::Write, (1, APPEND_BYTES as u64), || {
            target.open(&path, false)?.write_at(more, file.size)
        })?;
        file.size += APPEND_BYTES as u64;

        let mut found = Vec::new();
        record.time(Op::Read, (1, file.size), || target.read(&path, &mut found))?;
        ensure!(
            found.len() as u64 == file.size,
            "{path}: {} bytes",
            found.len()
        );
        let is_end = found.ends_with(more);
        ensure!(is_end, "{path} is not what was written");

        record.time(Op::Remove, (1, 0), || target.unlink(&path))?;
        let other = self.files.back().context("there are files")?;
        let path = self.path(other.id);
        let stat = record.time(Op::Stat, (1, 0), || target.stat(&path))?;
        let size = stat.map(|stat| stat.size);
        ensure!(size == Some(other.size), "{path}: {size:?}");
        Ok(())
    }
}

fn file_server(stage: &mut Stage<'_>, _step: u32) -> Result<()> {
    let each = (stage.fs_scale().files / 1000).clamp(4, 200);
    let (target, values) = (stage.target(), stage.values());
    let server = |thread| -> Result<Mutex<FileServer<'_>>> {
        let mut server = FileServer {
            target: &*target,
            values: &values,
            thread,
            files: VecDeque::new(),
            next_id: 0,
        };
        server.set_up(each)?;
        Ok(Mutex::new(server))
    };
    let servers = (0..THREADS).map(server).collect::<Result<Vec<_>>>()?;
    let loops = each * 2;
    stage.phase("serve", THREADS * loops * OPS, Ends::Returned, |record| {
        by_threads(record, THREADS, |thread, record| {
            let mut server = servers[usize::try_from(thread)?].lock();
            for _ in 0..loops {
                if record.is_over() {
                    break;
                }
                server.serve(record)?;
            }
            Ok(())
        })
    })
}

const PAGE_MEAN_BYTES: u64 = 16 << 10;

fn page(id: u64) -> String {
    format!("p{}/page{id}", id / DIR_NAMES)
}

fn web_server(stage: &mut Stage<'_>, step: u32) -> Result<()> {
    let pages = (stage.fs_scale().files / 20).clamp(100, 10_000);
    let (target, values) = (stage.target(), stage.values());
    if step == 0 {
        for id in 0..pages {
            if id % DIR_NAMES == 0 {
                target.make_dir(&format!("p{}", id / DIR_NAMES))?;
            }
            target.put(&page(id), values.value(id, len_bytes(id, PAGE_MEAN_BYTES)))?;
        }
        return target.sync();
    }
    let loops = (pages / 20).max(10);
    let total = THREADS * loops * (READS_PER_LOOP + 1);
    stage.phase("serve-cold", total, Ends::Returned, |record| {
        by_threads(record, THREADS, |thread, record| {
            let log = target.open(&format!("log{thread}"), true)?;
            let mut found = Vec::new();
            for number in 0..loops {
                if record.is_over() {
                    break;
                }
                for read in 0..READS_PER_LOOP {
                    let drawn = mix((thread * loops + number) * READS_PER_LOOP + read);
                    read_page(record, &*target, &values, (drawn % pages, &mut found))?;
                }
                let line = values.value(number, APPEND_BYTES);
                record.time(Op::Write, (1, APPEND_BYTES as u64), || {
                    log.write_at(line, number * APPEND_BYTES as u64)
                })?;
            }
            Ok(())
        })
    })
}

fn read_page(
    record: &mut Recorder<'_>,
    target: &dyn Target,
    values: &Values,
    (id, found): (u64, &mut Vec<u8>),
) -> Result<()> {
    let (path, len) = (page(id), len_bytes(id, PAGE_MEAN_BYTES));
    record.time(Op::Read, (1, len as u64), || target.read(&path, found))?;
    ensure!(
        values.is_value(id, len, found),
        "{path} is not what was written"
    );
    Ok(())
}
