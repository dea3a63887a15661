//! The interface of a system under test.

use std::fmt;
use stitch_base::ErrorKind;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_device::{Device, MemDevice};
use stitch_fs::MemFiles;

/// An error of a system, reduced to what the simulation checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemError {
    /// What a caller can do about it.
    pub kind: ErrorKind,
    /// The message for people.
    pub message: String,
}

impl SystemError {
    /// From the parts.
    pub fn new(kind: ErrorKind, message: impl fmt::Display) -> Self {
        Self {
            kind,
            message: message.to_string(),
        }
    }
}

impl fmt::Display for SystemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.kind)
    }
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// Done; survives a killed process.
    Done,
    /// Done; it and everything before it survive a power cut.
    Durable,
    /// Refused, without any effect.
    Refused,
}

/// A store with sequential operations, each of which is atomic, and with a state that can be
/// compared.
pub trait System {
    /// One operation.
    type Op: Clone + fmt::Debug;
    /// All that a user can see, for comparison.
    type State: Clone + PartialEq;
    /// A trusted model of the store, in memory.
    type Model;
    /// The open store.
    type Live;

    /// Returns its name in reports.
    fn name(&self) -> &'static str;

    /// A freshly formatted medium.
    fn image(&self) -> MemDevice;

    /// Returns the contents of a freshly formatted medium.
    fn model(&self) -> Self::Model;

    /// Whether states of one history are tied together, so that they must be made anew for another
    /// one.
    fn ties_states(&self) -> bool {
        false
    }

    /// Whether a state that equals `expected` is exactly that, so that the model goes on as the
    /// store does.
    fn is_exact(&self, found: &Self::State, expected: &Self::State) -> bool {
        let _ = (found, expected);
        true
    }

    /// Draws a next operation that makes sense now.
    fn generate(&self, model: &Self::Model, rng: &mut Rng) -> Self::Op;

    /// What `op` does, in the model.
    fn apply(&self, model: &mut Self::Model, op: &Self::Op);

    /// What a user of the model sees.
    fn model_state(&self, model: &Self::Model) -> Self::State;

    /// Opens the store for writing, recovering what a crash has left.
    ///
    /// # Errors
    /// The errors of the store.
    fn open(&self, device: Arc<dyn Device>) -> Result<Self::Live, SystemError>;

    /// Opens the store like [`Self::open`], with plain files beside the medium if the system has
    /// any.
    ///
    /// # Errors
    /// The errors of the store.
    fn open_beside(
        &self,
        device: Arc<dyn Device>,
        files: &MemFiles,
    ) -> Result<Self::Live, SystemError> {
        let _ = files;
        self.open(device)
    }

    /// Does one operation; `model` is as before it.
    ///
    /// # Errors
    /// The errors of the store, except refusals.
    fn run(
        &self,
        live: &mut Self::Live,
        op: &Self::Op,
        model: &Self::Model,
    ) -> Result<Ack, SystemError>;

    /// True for an operation that changes or secures anything.
    fn is_write(&self, op: &Self::Op) -> bool;

    /// Reads everything.
    ///
    /// # Errors
    /// Where something cannot be read.
    fn state(&self, live: &Self::Live) -> Result<Self::State, SystemError>;

    /// Reads whatever can be read, piece by piece, and compares it with `expected`: every piece is
    /// right or gives an error. `Ok` holds the number of errors.
    ///
    /// # Errors
    /// The first piece that is wrong.
    fn compare_readable(&self, live: &Self::Live, expected: &Self::State) -> Result<u64, String>;

    /// Checks every rule of the store; the broken ones.
    ///
    /// # Errors
    /// Where the check cannot go on.
    fn check(&self, live: &Self::Live) -> Result<Vec<String>, SystemError>;

    /// Finishes all background work.
    ///
    /// # Errors
    /// The errors of the store.
    fn quiesce(&self, live: &Self::Live) -> Result<(), SystemError> {
        let _ = live;
        Ok(())
    }

    /// Closes it cleanly: everything is durable afterwards.
    ///
    /// # Errors
    /// The errors of the store.
    fn close(&self, live: Self::Live) -> Result<(), SystemError>;

    /// The first difference, for a person.
    fn difference(&self, found: &Self::State, expected: &Self::State) -> String;
}
