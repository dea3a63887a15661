//! Requests that begin transactions, with path locks first.
//!
//! A process that waits for locks asks again and again: no request waits. Its place in the line is
//! kept as long as it lives.

use stitch_base::sync::Mutex;
use stitch_fs::{
    BeginOptions, LockTicket, PathLocks, TransactionInfo, TransactionIsolation, TransactionLife,
};

use super::scope::{Asker, Catalog};
use super::watch::ProcessHandle;
use super::{ReplyWords, Views, number_reply};
use crate::adapter::OrErrno as _;
use crate::adapter::process::Process;
use crate::adapter::report::check_caller;
use crate::adapter::views::changes::check_owner;
use crate::errno::Errno;
use crate::handler::Answer;
use crate::survive::is_resent;
use crate::transactions::{BEGUN, BeginArgs, HOLDS, ISOLATION, Isolation, LOCKED, Lifetime, WAITS};

/// Most processes that wait for locks.
const WAITING_MAX: usize = 256;

/// A process that waits for locks.
#[derive(Debug)]
struct Waiting {
    process: ProcessHandle,
    id: u32,
    name: String,
    paths: Vec<Vec<u8>>,
    ticket: LockTicket,
}

/// A transaction that is to begin.
struct NewTransaction<'a> {
    /// The transaction that it begins in.
    outer: Option<u64>,
    /// Its name there.
    name: &'a str,
    lock: Option<LockTicket>,
}

/// The processes that wait for path locks.
#[derive(Debug, Default)]
pub(super) struct LockLine {
    waiting: Mutex<Vec<Waiting>>,
}

impl LockLine {
    /// Takes the places of processes that have ended out of the line.
    fn drop_ended(waiting: &mut Vec<Waiting>, locks: &PathLocks) {
        waiting.retain(|place| {
            let has_ended = place.process.has_ended();
            if has_ended {
                locks.cancel(place.ticket);
            }
            !has_ended
        });
    }

    /// Takes the locks that a transaction asks for, or returns the names of those before it.
    fn take(
        &self,
        locks: &PathLocks,
        caller: &Process,
        args: &BeginArgs<'_>,
        within: &[u64],
    ) -> Answer<Result<LockTicket, Vec<String>>> {
        let mut waiting = self.waiting.lock();
        Self::drop_ended(&mut waiting, locks);
        let id = caller.id().ok_or(Errno::ESRCH)?;
        let is_it = |place: &Waiting| {
            place.id == id && place.name == args.name && place.paths == args.locks
        };
        let place = waiting.iter().position(is_it);
        let ticket = match place {
            Some(at) => waiting[at].ticket,
            None => {
                let asked = locks.request_within(args.name, &args.locks, within);
                asked.or_errno()?
            }
        };
        let taken = locks.try_lock(ticket);
        let stays = args.waits && taken.is_err();
        match (place, stays) {
            (Some(at), false) => drop(waiting.remove(at)),
            (None, true) => {
                let entered = Self::enter(&mut waiting, caller, args, ticket, id);
                if entered.is_err() {
                    locks.cancel(ticket);
                }
                entered?;
            }
            _ => {}
        }
        if taken.is_err() && !stays {
            locks.cancel(ticket);
        }
        Ok(taken.map(|()| ticket))
    }

    fn enter(
        waiting: &mut Vec<Waiting>,
        caller: &Process,
        args: &BeginArgs<'_>,
        ticket: LockTicket,
        id: u32,
    ) -> Answer<()> {
        if waiting.len() >= WAITING_MAX {
            return Err(Errno::EMFILE);
        }
        debug_assert!(
            waiting.iter().all(|place| place.ticket != ticket),
            "one place for a ticket"
        );
        waiting.push(Waiting {
            process: ProcessHandle::of(caller)?,
            id,
            name: args.name.to_owned(),
            paths: args.locks.clone(),
            ticket,
        });
        Ok(())
    }
}

impl Views {
    /// Begins a transaction, once it has the path locks that it asks for.
    pub(super) fn begin(&self, asker: &Asker<'_>, args: &BeginArgs<'_>) -> Answer<Vec<u8>> {
        let caller = Process::of(asker.context);
        let catalog = Catalog::read(self.mainline.fs())?;
        let (outer, name) = catalog.split(asker.scope, args.name)?;
        let mut others = catalog.open();
        if let Some(outer) = others.find(|info| Some(info.number) == outer) {
            check_owner(asker.context, outer.owner)?;
        }
        let locks = self.mainline.fs().transactions().path_locks();
        let lock = match args.locks.is_empty() {
            true => None,
            false => {
                self.check_free(asker, args.name)?;
                let full_name = catalog.full_name(asker.scope, args.name);
                let (args, within) = (args.named(&full_name), catalog.path_to(outer));
                match self
                    .transactions
                    .line
                    .take(locks, &caller, &args, &within)?
                {
                    Ok(ticket) => Some(ticket),
                    Err(names) => return Ok(locked_reply(&names)),
                }
            }
        };
        let new = NewTransaction { outer, name, lock };
        let begun = self.begin_locked(asker, &caller, args, new);
        if let Some(ticket) = lock {
            // Those of a transaction that has begun are its own.
            locks.cancel(ticket);
        }
        let number = begun?;
        tracing::info!(name = args.name, number, "began a transaction");
        Ok(match args.is_plain {
            true => number_reply(number),
            false => ReplyWords::of(&[BEGUN.as_bytes(), number.to_string().as_bytes()]),
        })
    }

    /// Refuses a name that is used, before its locks are waited for.
    fn check_free(&self, asker: &Asker<'_>, name: &str) -> Answer<()> {
        let is_used = Catalog::read(self.mainline.fs())?
            .find(asker.scope, name)
            .is_ok();
        match is_used && !is_resent(asker.context.unique) {
            true => Err(Errno::EEXIST),
            false => Ok(()),
        }
    }

    fn begin_locked(
        &self,
        asker: &Asker<'_>,
        caller: &Process,
        args: &BeginArgs<'_>,
        new: NewTransaction<'_>,
    ) -> Answer<u64> {
        let owner = caller.uid().ok_or(Errno::EPERM)?;
        let process = match args.life {
            Lifetime::Named => None,
            Lifetime::Run | Lifetime::Watched => Some(ProcessHandle::of(caller)?),
        };
        let options = BeginOptions {
            life: match args.life {
                Lifetime::Run => TransactionLife::Run,
                Lifetime::Named | Lifetime::Watched => TransactionLife::Named,
            },
            isolation: match args.isolation {
                Isolation::Snapshot => TransactionIsolation::Snapshot,
                Isolation::Serializable => TransactionIsolation::Serializable,
            },
            owner,
            lock: new.lock,
            outer: new.outer,
            ..BeginOptions::default()
        };
        let is_limited = check_caller(asker.context).is_err();
        let table = &self.transactions.table;
        let begun = match table.begin(new.name, &options, is_limited) {
            // Perhaps this very request has done it, and only the answer is missing.
            Err(Errno::EEXIST) if is_resent(asker.context.unique) => {
                let info = self.owned(asker, args.name)?;
                table.by_number(info.number)?
            }
            begun => begun?,
        };
        let number = begun.info().number;
        if let Some(process) = process
            && let Err(error) = self.transactions.watch(process, number)
        {
            self.transactions.commits.abort_ended(number);
            return Err(error);
        }
        Ok(number)
    }

    /// Tells of the isolation of open transactions, and of path locks.
    pub(super) fn list_details(&self, scope: Option<u64>, from: usize) -> Answer<Vec<u8>> {
        let fs = self.mainline.fs();
        let locks = fs.transactions().path_locks();
        LockLine::drop_ended(&mut self.transactions.line.waiting.lock(), locks);
        let catalog = Catalog::read(fs)?;
        let is_told =
            |info: &&TransactionInfo| info.isolation == TransactionIsolation::Serializable;
        let word = Isolation::Serializable.word().as_bytes().to_vec();
        let isolated = catalog.open().filter(is_told);
        let isolated = isolated.filter_map(|info| {
            let name = catalog.name_in(scope, info)?;
            Some((name, ISOLATION, word.clone()))
        });
        let prefix = catalog.prefix(scope).unwrap_or_default();
        let locked = locks.list().into_iter().flat_map(|lock| {
            let kind = if lock.is_held { HOLDS } else { WAITS };
            let name = lock.name.strip_prefix(&prefix).map(str::to_owned);
            let paths = lock.paths.into_iter().filter_map(move |path| {
                let path = [b"/", &path[..]].concat();
                Some((name.clone()?, kind, path))
            });
            paths.collect::<Vec<_>>()
        });
        let details: Vec<(String, &str, Vec<u8>)> = isolated.chain(locked).collect();
        let mut reply = ReplyWords::default();
        reply.add(&[details.len().to_string().as_bytes()]);
        for (name, kind, value) in details.iter().skip(from) {
            if !reply.add(&[name.as_bytes(), kind.as_bytes(), value]) {
                break;
            }
        }
        Ok(reply.0)
    }
}

fn locked_reply(names: &[String]) -> Vec<u8> {
    let mut reply = ReplyWords::default();
    reply.add(&[LOCKED.as_bytes()]);
    for name in names {
        if !reply.add(&[name.as_bytes()]) {
            break;
        }
    }
    reply.0
}
