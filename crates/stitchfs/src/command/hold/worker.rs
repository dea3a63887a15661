//! The daemon of a mount that is held: it mounts, or goes on with what an earlier daemon served.

use super::messages::{Order, Report, State};
use crate::command::daemon;
use crate::command::log;
use crate::command::mount::{Ending, MountArgs, Prepared, catch_signals, end_by_signals};
use crate::command::{startup, utab};
use anyhow::{Context, Result, bail};
use rustix::io::fcntl_dupfd_cloexec;
use serde_json::Value;
use signal_hook::iterator::Signals;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use stitch_base::clock::{Clock, SystemClock};
use stitch_base::sync::Mutex;
use stitch_fuse::Errno;
use stitch_fuse::session::Kept;
use stitch_fuse::survive::ledger::SharedLedger;
use stitch_fuse::survive::link::Link;
use stitch_fuse::transport::gate::Gate;
use stitchfs::{Host, Keeper, KeeperNote};

/// Serves until the mount is unmounted, or goes to another daemon.
pub(in crate::command) fn run(args: &MountArgs) -> Result<u8> {
    // It was started by a descriptor, whose number would show as its name.
    let _ = rustix::thread::set_name(c"stitchfs");
    let link = Arc::new(link()?);
    let message = link.receive()?.context("the holder of the mount is gone")?;
    let ended = match Order::decode(&message.bytes)? {
        Order::Begin { about } => begin(args, &link, about),
        Order::TakeOver { state, about } => {
            let state = State::decode(&state)?;
            let log = state.log.as_deref();
            log::subscribe(args.log_target_or(log, !args.foreground()))?;
            take_over(args, &link, state, message.descriptors, about)
                .inspect_err(|error| tracing::error!("cannot go on with the mount: {error:#}"))
        }
        Order::HandOver | Order::About(_) => bail!("the holder of the mount begins in the middle"),
    };
    ended.map(|()| 0)
}

/// The link to the holder, which is our standard input.
fn link() -> Result<Link> {
    let input = fcntl_dupfd_cloexec(std::io::stdin(), 3).context("no word from a holder")?;
    let null = std::fs::File::open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdin(&null).context("cannot let go of standard input")?;
    Ok(Link::new(input))
}

fn begin(args: &MountArgs, link: &Arc<Link>, about: Value) -> Result<()> {
    let in_background = !args.foreground();
    log::subscribe(args.log_target(in_background))?;
    let Prepared {
        store,
        options,
        config,
    } = args.prepare()?;
    let ledger = Arc::new(SharedLedger::create().context("cannot make a ledger")?);
    let (path, log) = (store.path().to_owned(), args.log_path()?);
    let keep = |kept: &Kept, descriptors: &[BorrowedFd<'_>]| {
        let state = State {
            kept: kept.clone(),
            store: path.clone(),
            log: log.clone(),
        };
        let state = state.encode();
        link.send(&Report::Keep { state }.encode(), descriptors)
    };
    let signals = catch_signals(in_background)?;
    let (mount_point, keeper) = (args.mount_point(), keeper(link, about));
    let host = Host::mount_held(store, ledger, mount_point, &options, &config, &keep, keeper)?;
    serve(host, signals, link, args)
}

fn take_over(
    args: &MountArgs,
    link: &Arc<Link>,
    state: State,
    descriptors: Vec<OwnedFd>,
    about: Value,
) -> Result<()> {
    // Nothing here may look at the mount: no daemon would answer.
    let store = args.open_again(&state.store)?;
    let (checks, config) = args.checks_and_config()?;
    let (signals, keeper) = (catch_signals(!args.foreground())?, keeper(link, about));
    let host = Host::take_over(store, state.kept, descriptors, checks, &config, keeper)?;
    serve(host, signals, link, args)
}

fn serve(host: Host, signals: Signals, link: &Arc<Link>, args: &MountArgs) -> Result<()> {
    let in_background = !args.foreground();
    let note = host.keeper_note();
    let ending = Ending {
        stopper: host.stopper(),
        gate: None,
        in_background,
    };
    end_by_signals(signals, ending)?;
    let gate = host.gate();
    let shut = Arc::new(Mutex::new(None));
    watch(link, &gate, &note, &shut)?;
    // The mount is held by now; without a holder it would only be served for as long as we live.
    let said = link.send(&Report::Ready.encode(), &[]);
    said.context("the holder of the mount is gone")?;
    if in_background {
        daemon::let_go()?;
    }
    let _listed = utab::Listed::new(args.mount_point());
    startup::leave_directory()?;
    host.join()?;
    let shut = shut.lock().take();
    if let Some(shut) = shut.filter(|_| gate.is_shut()) {
        let waited: Duration = SystemClock::monotonic(&shut);
        let waited_us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        link.send(&Report::HandedOver { waited_us }.encode(), &[])?;
    }
    Ok(())
}

/// Passes on what is asked of the holder.
fn keeper(link: &Arc<Link>, about: Value) -> Keeper {
    let link = Arc::clone(link);
    let asked = Arc::new(move |request: &[u8]| {
        let mut request: Value = serde_json::from_slice(request).map_err(|_| Errno::EINVAL)?;
        if request["do"] != "upgrade" {
            return Err(Errno::EINVAL);
        }
        let token = request["token"].take();
        let report = Report::Upgrade { token }.encode();
        link.send(&report, &[]).map_err(|_| Errno::EIO)
    });
    Keeper { asked, about }
}

/// When the gate was shut.
type Shut = Arc<Mutex<Option<SystemClock>>>;

/// Hears the holder, in a thread.
fn watch(link: &Arc<Link>, gate: &Arc<Gate>, note: &KeeperNote, shut: &Shut) -> Result<()> {
    let (link, gate) = (Arc::clone(link), Arc::clone(gate));
    let (note, shut) = (note.clone(), Arc::clone(shut));
    let body = move || {
        while let Ok(Some(message)) = link.receive() {
            match Order::decode(&message.bytes) {
                Ok(Order::HandOver) => {
                    *shut.lock() = Some(SystemClock::default());
                    gate.shut();
                }
                Ok(Order::About(about)) => note.set(about),
                other => tracing::warn!(?other, "the holder of the mount makes no sense"),
            }
        }
        tracing::error!("the holder of the mount is gone: the mount ends with this daemon");
    };
    stitch_base::thread::spawn("holder", body).context("cannot start a thread")?;
    Ok(())
}
