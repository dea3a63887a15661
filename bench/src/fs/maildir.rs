//! A mail server on maildirs, as Dovecot keeps them (BetrFS paper, section 7.3), by our own loop:
//! each thread has a mailbox.
//!
//! - A message is delivered: written to `tmp`, synced, renamed to `new`.
//! - A turn of the loop delivers one, moves the oldest new one to `cur`, marks one of those as seen
//!   by another name, reads two, and removes one. After each ten turns the mailbox is listed.
//!
//! A cold mailbox is read by listing it: a name tells the number and the state of its message.

use super::stage::{Ends, Stage};
use super::target::Target;
use super::{Caches, FsWorkload};
use crate::measure::{Op, Recorder, by_threads};
use crate::values::{Values, mix};
use anyhow::{Context as _, Result, ensure};
use stitch_base::random::Rng;
use stitch_base::sync::Mutex;

const THREADS: u64 = 4;
const LEN_BYTES_MEAN: u64 = 8 << 10;
/// Messages of other mailboxes have other numbers.
const IDS_PER_BOX: u64 = 1 << 32;
/// Operations in a turn, without the listing.
const OPS: u64 = 6;
const TURNS_PER_LIST: u64 = 10;

pub(super) fn workload() -> FsWorkload {
    FsWorkload::new(
        "maildir",
        "mailboxes as Dovecot's, 4 threads: deliver, synced; deliver, move, mark, read, delete, \
         list, also cold",
        &[Caches::Warm, Caches::Cold],
        run,
    )
}

/// The state of a message: its directory and the flags in its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MailState {
    New,
    Cur,
    Seen,
}

impl MailState {
    const ALL: [Self; 3] = [Self::New, Self::Cur, Self::Seen];

    const fn dir(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Cur | Self::Seen => "cur",
        }
    }

    /// What follows the number in the name.
    const fn flags(self) -> &'static str {
        match self {
            Self::New => "",
            Self::Cur => ":2,",
            Self::Seen => ":2,S",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mail {
    id: u64,
    place: MailState,
}

impl Mail {
    /// The message of this name in this directory.
    fn of(dir: &str, name: &[u8]) -> Option<Self> {
        let rest = std::str::from_utf8(name).ok()?.strip_prefix('m')?;
        let at = rest.find(':').unwrap_or(rest.len());
        let (id, flags) = rest.split_at(at);
        let is_it = |place: &MailState| place.dir() == dir && place.flags() == flags;
        let place = MailState::ALL.into_iter().find(is_it)?;
        let id = id.parse().ok()?;
        Some(Self { id, place })
    }
}

fn len_bytes(id: u64) -> usize {
    let len = LEN_BYTES_MEAN / 4 + mix(id) % (LEN_BYTES_MEAN * 3 / 2);
    usize::try_from(len).expect("messages are small")
}

/// A thread's mailbox.
struct Mailbox<'a> {
    target: &'a dyn Target,
    values: &'a Values,
    number: u64,
    messages: Vec<Mail>,
    next_id: u64,
    rng: Rng,
}

impl<'a> Mailbox<'a> {
    fn new((target, values): (&'a dyn Target, &'a Values), number: u64, seed: u64) -> Self {
        Self {
            target,
            values,
            number,
            messages: Vec::new(),
            next_id: number * IDS_PER_BOX,
            rng: Rng::new(mix(seed + number)),
        }
    }

    fn dir(&self, name: &str) -> String {
        format!("box{}/{name}", self.number)
    }

    fn path(&self, message: Mail) -> String {
        let (dir, flags) = (message.place.dir(), message.place.flags());
        format!("box{}/{dir}/m{}{flags}", self.number, message.id)
    }

    fn make(&self) -> Result<()> {
        self.target.make_dir(&format!("box{}", self.number))?;
        let mut dirs = ["tmp", "new", "cur"].into_iter();
        dirs.try_for_each(|name| self.target.make_dir(&self.dir(name)))
    }

    fn deliver(&mut self, record: &mut Recorder<'_>) -> Result<()> {
        let message = Mail {
            id: self.next_id,
            place: MailState::New,
        };
        let data = self.values.value(message.id, len_bytes(message.id));
        let begun = self.dir(&format!("tmp/m{}", message.id));
        record.time(Op::Sync, (1, data.len() as u64), || {
            let file = self.target.open(&begun, true)?;
            file.write_at(data, 0)?;
            file.sync()?;
            self.target.rename(&begun, &self.path(message))
        })?;
        self.messages.push(message);
        self.next_id += 1;
        Ok(())
    }

    /// Gives the first message in one place the name of another.
    fn shift(&mut self, record: &mut Recorder<'_>, from: MailState, to: MailState) -> Result<()> {
        let mut found = self.messages.iter().enumerate();
        let Some((index, &message)) = found.find(|(_, message)| message.place == from) else {
            return Ok(());
        };
        let shifted = Mail {
            place: to,
            ..message
        };
        let (source, aim) = (self.path(message), self.path(shifted));
        record.time(Op::Rename, (1, 0), || self.target.rename(&source, &aim))?;
        self.messages[index] = shifted;
        Ok(())
    }

    /// Any one, by its place in the list.
    fn draw(&mut self) -> Result<usize> {
        let count = self.messages.len() as u64;
        ensure!(count > 0, "the mailbox is empty");
        Ok(usize::try_from(self.rng.below(count))?)
    }

    fn read(&mut self, record: &mut Recorder<'_>, out: &mut Vec<u8>) -> Result<()> {
        let drawn = self.draw()?;
        let message = self.messages[drawn];
        let (path, len) = (self.path(message), len_bytes(message.id));
        record.time(Op::Read, (1, len as u64), || self.target.read(&path, out))?;
        let is_it = self.values.is_value(message.id, len, out);
        ensure!(is_it, "{path} is not what was written");
        Ok(())
    }

    fn remove(&mut self, record: &mut Recorder<'_>) -> Result<()> {
        let drawn = self.draw()?;
        let message = self.messages.remove(drawn);
        let path = self.path(message);
        record.time(Op::Remove, (1, 0), || self.target.unlink(&path))
    }

    /// What is there now.
    fn listed(&self, record: &mut Recorder<'_>) -> Result<Vec<Mail>> {
        let mut found = Vec::new();
        for dir in ["new", "cur"] {
            let path = self.dir(dir);
            let mut unknown = None;
            record.time(Op::List, (1, 0), || {
                self.target
                    .list(&path, false, &mut |name, _| match Mail::of(dir, name) {
                        Some(message) => found.push(message),
                        None => unknown = Some(name.to_vec()),
                    })
            })?;
            let is_known = unknown.is_none();
            ensure!(is_known, "{path}: {unknown:?} is no message of this run");
        }
        found.sort_by_key(|message| message.id);
        Ok(found)
    }

    fn turn(&mut self, record: &mut Recorder<'_>, out: &mut Vec<u8>) -> Result<()> {
        self.deliver(record)?;
        self.shift(record, MailState::New, MailState::Cur)?;
        self.shift(record, MailState::Cur, MailState::Seen)?;
        self.read(record, out)?;
        self.read(record, out)?;
        self.remove(record)
    }

    fn serve(&mut self, record: &mut Recorder<'_>, turns: u64) -> Result<()> {
        let mut out = Vec::new();
        for turn in 1..=turns {
            if record.is_over() {
                break;
            }
            self.turn(record, &mut out)?;
            if turn % TURNS_PER_LIST == 0 {
                self.check(record)?;
            }
        }
        self.check(record)
    }

    fn check(&self, record: &mut Recorder<'_>) -> Result<()> {
        let (found, count) = (self.listed(record)?, self.messages.len());
        let is_same = found == self.messages;
        ensure!(is_same, "box{}: {} of {count}", self.number, found.len());
        Ok(())
    }

    /// Takes what is there for what was left.
    fn learn(&mut self, record: &mut Recorder<'_>) -> Result<()> {
        self.messages = self.listed(record)?;
        let last = self.messages.last().context("the mailbox is empty")?;
        self.next_id = last.id + 1;
        Ok(())
    }
}

fn run(stage: &mut Stage<'_>, step: u32) -> Result<()> {
    let each = (stage.fs_scale().files / 400).clamp(20, 2_500);
    let (target, values) = (stage.target(), stage.values());
    let seed = stage.seed() + u64::from(step);
    let mailbox = |number| Mailbox::new((&*target, &values), number, seed);
    let boxes: Vec<Mutex<Mailbox<'_>>> = (0..THREADS).map(mailbox).map(Mutex::new).collect();
    let phase = |stage: &mut Stage<'_>, name: &str, total, body: &Body<'_>| {
        stage.phase(name, total, Ends::Returned, |record| {
            by_threads(record, THREADS, |thread, record| {
                let index = usize::try_from(thread)?;
                body(&mut boxes[index].lock(), record)
            })
        })
    };
    let turns = THREADS * each * OPS;
    if step == 0 {
        boxes.iter().try_for_each(|each| each.lock().make())?;
        phase(stage, "deliver", THREADS * each, &|mailbox, record| {
            for _ in 0..each {
                if record.is_over() {
                    break;
                }
                mailbox.deliver(record)?;
            }
            Ok(())
        })?;
        phase(stage, "serve", turns, &|mailbox, record| {
            mailbox.serve(record, each)
        })?;
    } else {
        phase(stage, "list-cold", THREADS * 2, &|mailbox, record| {
            mailbox.learn(record)
        })?;
        let found: usize = boxes.iter().map(|each| each.lock().messages.len()).sum();
        let expected = stage.carry;
        ensure!(found as u64 == expected, "{found} messages of {expected}");
        phase(stage, "serve-cold", turns, &|mailbox, record| {
            mailbox.serve(record, each)
        })?;
    }
    let left: usize = boxes.iter().map(|each| each.lock().messages.len()).sum();
    stage.carry = left as u64;
    Ok(())
}

/// What a thread does in a phase.
type Body<'a> = dyn Fn(&mut Mailbox<'_>, &mut Recorder<'_>) -> Result<()> + Sync + 'a;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_number_and_place() {
        for place in MailState::ALL {
            let name = format!("m17{}", place.flags());
            let message = Mail { id: 17, place };
            assert_eq!(Mail::of(place.dir(), name.as_bytes()), Some(message));
        }
        assert_eq!(Mail::of("new", b"m17:2,S"), None);
        assert_eq!(Mail::of("cur", b"m17"), None);
        assert_eq!(Mail::of("new", b"17"), None);
        assert_eq!(Mail::of("new", b"\xff"), None);
    }
}
