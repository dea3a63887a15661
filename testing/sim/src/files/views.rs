//! Snapshots, clones, rollbacks and transactions beside mainline as a system under test.
//!
//! The state is what every view shows: mainline, snapshots, clones of both and of clones, named
//! transactions, and the outcomes of those that have ended. The trusted model is the file system on
//! the model engine. Each operation is one step of the history: after a crash all of it is there or
//! nothing. So a *run*, which no crash leaves, is one operation from its begin to its end.
//!
//! Directories are not linked and whole trees not removed here: how long the names of a removed
//! tree count as links is the store's affair, and the workload `fs` has both.

mod ops;
mod paths;
pub mod sends;
mod state;

pub use ops::{ViewOp, ViewWhat};
pub use state::Views;

use super::{LiveFs, SetClock, error, is_answer, options, registry};
use crate::files::FsSystem;
use crate::kv::{Host, OpenEngine};
use crate::{Ack, System, SystemError};
use std::collections::BTreeSet;
use stitch_base::ErrorKind;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_base::sync::atomic::Ordering;
use stitch_device::{Device, MemDevice};
use stitch_fs::{FileSystem, FsError, FsOptions};
use stitch_kv::{Engine, ModelEngine};

/// A file system with views, on engines of one kind.
#[derive(Debug)]
pub struct ViewsSystem<H> {
    files: FsSystem<H>,
    rolls_back_at_once: bool,
}

/// The file system on the model engine.
pub struct ViewsModel {
    fs: FileSystem,
    clock: Arc<SetClock>,
    views: Views,
    seconds: u64,
}

impl<H: Host> ViewsSystem<H> {
    /// Formats a file system on an engine of `host`.
    ///
    /// # Panics
    /// If that fails.
    pub fn new(host: H, name: &'static str) -> Self {
        Self {
            files: FsSystem::new(host, name),
            rolls_back_at_once: false,
        }
    }

    /// The same, with rollbacks in one batch: one that is refused has done no part.
    #[must_use]
    pub fn with_whole_rollbacks(self) -> Self {
        Self {
            rolls_back_at_once: true,
            ..self
        }
    }

    fn options(&self, clock: &Arc<SetClock>) -> FsOptions {
        let all = options(clock);
        let few_bytes = all.rollback_batch_bytes;
        FsOptions {
            rollback_batch_bytes: few_bytes.filter(|_| !self.rolls_back_at_once),
            ..all
        }
    }
}

fn model_error(e: FsError) -> String {
    format!("the model says {e}")
}

impl<H: Host> System for ViewsSystem<H> {
    type Op = ViewOp;
    type State = Views;
    type Model = ViewsModel;
    type Live = LiveFs;

    fn name(&self) -> &'static str {
        self.files.name
    }

    fn image(&self) -> MemDevice {
        self.files.image.clone()
    }

    fn model(&self) -> ViewsModel {
        let engine: Arc<dyn Engine> = Arc::new(ModelEngine::new(registry()));
        let clock = Arc::new(SetClock::default());
        FileSystem::format(&engine, &options(&clock), (0, 0)).expect("the model takes one");
        let fs = FileSystem::open(engine, options(&clock)).expect("the model opens");
        let views = Views::read(&fs).expect("the model can be read");
        ViewsModel {
            fs,
            clock,
            views,
            seconds: 0,
        }
    }

    fn generate(&self, model: &ViewsModel, rng: &mut Rng) -> ViewOp {
        let at = model.seconds + 1;
        ViewOp {
            at,
            what: ops::generate(&model.views, at, rng),
        }
    }

    fn apply(&self, model: &mut ViewsModel, op: &ViewOp) {
        model.seconds = op.at;
        model.clock.seconds.store(op.at, Ordering::SeqCst);
        let done = ops::run(&model.fs, op, &mut Vec::new());
        if let Err(e) = done
            && !is_refusal(&e)
        {
            panic!("{} to {op:?}", model_error(e));
        }
        model.views = Views::read(&model.fs)
            .map_err(model_error)
            .expect("it can be read");
    }

    fn model_state(&self, model: &ViewsModel) -> Views {
        model.views.clone()
    }

    fn open(&self, device: Arc<dyn Device>) -> Result<LiveFs, SystemError> {
        let OpenEngine {
            engine,
            step,
            audit,
            ..
        } = self.files.host.open(device, registry())?;
        let clock = Arc::new(SetClock::default());
        let fs = FileSystem::open(engine, self.options(&clock)).map_err(error)?;
        Ok(LiveFs {
            fs,
            step,
            audit,
            clock,
            held: Vec::new(),
            files: None,
            lent: BTreeSet::new(),
        })
    }

    fn run(&self, live: &mut LiveFs, op: &ViewOp, _: &ViewsModel) -> Result<Ack, SystemError> {
        live.clock.seconds.store(op.at, Ordering::SeqCst);
        if op.what.is_step() {
            // It changes nothing that is seen. One that fails is tried again.
            drop(live.fs.snapshots().narrow_clones_ahead());
            return (live.step)().and_then(|_| live.audited(Ack::Done));
        }
        let done = ops::run(&live.fs, op, &mut live.held);
        while live.held.len() > super::HELD_MAX {
            live.fs.close_handle(live.held.remove(0));
        }
        live.audited(match done {
            Ok(()) if op.what.is_durable() => Ack::Durable,
            Ok(()) => Ack::Done,
            // The model answers the same, or the states differ.
            Err(e) if is_refusal(&e) => Ack::Done,
            Err(FsError::NoSpace) => Ack::Refused,
            Err(e) => return Err(error(e)),
        })
    }

    fn is_write(&self, op: &ViewOp) -> bool {
        op.what.is_write()
    }

    fn state(&self, live: &LiveFs) -> Result<Views, SystemError> {
        Views::read(&live.fs).map_err(error)
    }

    fn compare_readable(&self, live: &LiveFs, expected: &Views) -> Result<u64, String> {
        match Views::read(&live.fs) {
            Ok(found) if found == *expected => Ok(0),
            Ok(found) => Err(found.difference(expected)),
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Io) => Ok(1),
            Err(e) => Err(e.to_string()),
        }
    }

    fn check(&self, live: &LiveFs) -> Result<Vec<String>, SystemError> {
        let mut broken = self.files.check(live)?;
        match live.fs.reclaim() {
            Ok(_) => broken.extend(state::loose_trees(&live.fs).map_err(error)?),
            // What is to be dropped waits for space.
            Err(FsError::NoSpace) => {}
            Err(other) => return Err(error(other)),
        }
        Ok(broken)
    }

    fn quiesce(&self, live: &LiveFs) -> Result<(), SystemError> {
        self.files.quiesce(live)
    }

    fn close(&self, live: LiveFs) -> Result<(), SystemError> {
        self.files.close(live)
    }

    fn difference(&self, found: &Views, expected: &Views) -> String {
        found.difference(expected)
    }
}

/// Reports whether an error says something about the request, not about the store.
fn is_refusal(e: &FsError) -> bool {
    let is_of_transactions = matches!(e, FsError::Conflict(_) | FsError::HasInner(_));
    is_answer(e.kind()) || is_of_transactions
}

#[cfg(test)]
mod tests;
