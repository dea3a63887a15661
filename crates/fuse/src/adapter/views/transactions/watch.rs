//! Watches the processes that have begun runs: a thread waits for their end.
//!
//! A pidfd stands for one process for ever, while its number may be used again.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno as OsError;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_base::sync::{Arc, Mutex};
use stitch_base::thread::JoinHandle;

use crate::adapter::process::Process;
use crate::errno::Errno;
use crate::handler::Answer;

/// A process, whatever becomes of its number.
#[derive(Debug)]
pub(super) struct ProcessHandle(OwnedFd);

impl ProcessHandle {
    /// Returns the process that sent a request, and waits for its reply.
    ///
    /// # Errors
    /// `ESRCH` if it cannot be seen from here, as in another pid namespace.
    pub(super) fn of(process: &Process) -> Answer<Self> {
        let id = process.id().and_then(|id| i32::try_from(id).ok());
        let id = id.and_then(Pid::from_raw).ok_or(Errno::ESRCH)?;
        let opened = pidfd_open(id, PidfdFlags::empty());
        opened.map(Self).map_err(|_| Errno::ESRCH)
    }

    /// Reports whether it has ended.
    pub(super) fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        let at_once = Timespec::default();
        let ready = poll(&mut polled, Some(&at_once));
        ready.is_ok_and(|count| count > 0)
    }
}

#[derive(Debug)]
struct Watched {
    process: ProcessHandle,
    number: u64,
}

#[derive(Debug)]
struct WatchState {
    list: Mutex<Vec<Arc<Watched>>>,
    /// Held by the thread from taking a process that has ended off the list until what that means
    /// is done.
    ending: Mutex<()>,
    is_stopped: AtomicBool,
    /// A byte in it wakes the thread.
    wake: UnixStream,
}

/// The thread, and what it shares.
struct WatchThread {
    state: Arc<WatchState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The processes, and the thread.
pub(super) struct ProcessWatch {
    started: io::Result<WatchThread>,
}

impl fmt::Debug for ProcessWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessWatch").finish_non_exhaustive()
    }
}

impl ProcessWatch {
    /// Starts the thread. It calls `ended` with the number of each transaction whose process has
    /// ended.
    pub(super) fn new(ended: impl Fn(u64) + Send + 'static) -> Self {
        Self {
            started: start(ended),
        }
    }

    fn state(&self) -> io::Result<&Arc<WatchState>> {
        match &self.started {
            Ok(started) => Ok(&started.state),
            Err(error) => Err(error.raw_os_error().map_or_else(
                || io::Error::other(error.to_string()),
                io::Error::from_raw_os_error,
            )),
        }
    }

    /// Watches a process.
    pub(super) fn add(&self, process: ProcessHandle, number: u64) -> io::Result<()> {
        let state = self.state()?;
        state
            .list
            .lock()
            .push(Arc::new(Watched { process, number }));
        state.wake()
    }

    /// Watches it no more. Reports whether it was watched.
    pub(super) fn remove(&self, number: u64) -> bool {
        self.state().is_ok_and(|state| state.remove(number))
    }

    /// Watches the process of a transaction no more if it has ended. Reports whether it has. If the
    /// thread has noticed it before, waits until that is done, and returns false.
    pub(super) fn take_ended(&self, number: u64) -> bool {
        self.state().is_ok_and(|state| state.take_ended(number))
    }

    /// Reports whether the process of a transaction is watched.
    pub(super) fn has(&self, number: u64) -> bool {
        let is_it = |watched: &Arc<Watched>| watched.number == number;
        self.state()
            .is_ok_and(|state| state.list.lock().iter().any(is_it))
    }

    /// Ends the thread. Returns the transactions whose processes have not ended.
    pub(super) fn stop(&self) -> Vec<u64> {
        let Ok(WatchThread { state, thread }) = &self.started else {
            return Vec::new();
        };
        state.is_stopped.store(true, Ordering::Release);
        if state.wake().is_ok()
            && let Some(thread) = thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that watches processes panicked");
        }
        let left = std::mem::take(&mut *state.list.lock());
        left.iter().map(|watched| watched.number).collect()
    }
}

impl Drop for ProcessWatch {
    fn drop(&mut self) {
        self.stop();
    }
}

fn start(ended: impl Fn(u64) + Send + 'static) -> io::Result<WatchThread> {
    let (wake, woken) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    woken.set_nonblocking(true)?;
    let state = Arc::new(WatchState {
        list: Mutex::default(),
        ending: Mutex::default(),
        is_stopped: AtomicBool::new(false),
        wake,
    });
    let body = {
        let state = Arc::clone(&state);
        move || state.run(&woken, &ended)
    };
    let thread = stitch_base::thread::spawn("fuse-runs", body)?;
    let thread = Mutex::new(Some(thread));
    Ok(WatchThread { state, thread })
}

impl WatchState {
    fn wake(&self) -> io::Result<()> {
        match (&self.wake).write(&[1]) {
            // It is full of bytes that wake.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            written => written.map(drop),
        }
    }

    fn remove(&self, number: u64) -> bool {
        let mut list = self.list.lock();
        let count = list.len();
        list.retain(|watched| watched.number != number);
        list.len() < count
    }

    fn take_ended(&self, number: u64) -> bool {
        let _ending = self.ending.lock();
        let mut list = self.list.lock();
        let count = list.len();
        list.retain(|watched| watched.number != number || !watched.process.has_ended());
        list.len() < count
    }

    fn run(&self, woken: &UnixStream, ended: &impl Fn(u64)) {
        while !self.is_stopped.load(Ordering::Acquire) {
            match self.wait(woken) {
                Ok(numbers) => {
                    for number in numbers {
                        let _ending = self.ending.lock();
                        // It may have been let go of meanwhile.
                        if self.remove(number) {
                            ended(number);
                        }
                    }
                }
                Err(OsError::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "processes of transactions are not watched any more");
                    return;
                }
            }
        }
    }

    /// Waits until a process has ended or the list has changed. Returns those that have ended.
    fn wait(&self, mut woken: &UnixStream) -> Result<Vec<u64>, OsError> {
        let list: Vec<Arc<Watched>> = self.list.lock().clone();
        let processes = list.iter().map(|watched| watched.process.0.as_fd());
        let mut polled: Vec<PollFd<'_>> = [woken.as_fd()]
            .into_iter()
            .chain(processes)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        poll(&mut polled, None)?;
        let mut bytes = [0; 64];
        // Empty is as good.
        let _ = woken.read(&mut bytes);
        let ended = polled[1..].iter().zip(&list);
        let ended = ended.filter(|(fd, _)| !fd.revents().is_empty());
        Ok(ended.map(|(_, watched)| watched.number).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};
    use std::sync::mpsc;

    /// A process that lives until its input is closed.
    fn child() -> Child {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().unwrap()
    }

    fn handle(child: &Child) -> ProcessHandle {
        let pid = Pid::from_child(child);
        ProcessHandle(pidfd_open(pid, PidfdFlags::empty()).unwrap())
    }

    fn end(mut child: Child) {
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn the_end_of_each_process_is_told_once() {
        let (sender, receiver) = mpsc::channel();
        let watch = ProcessWatch::new(move |number| sender.send(number).unwrap());
        let children: Vec<Child> = (0..3).map(|_| child()).collect();
        for (number, child) in (0..).zip(&children) {
            watch.add(handle(child), number).unwrap();
        }
        let mut children = children.into_iter();
        end(children.next().unwrap());
        assert_eq!(receiver.recv(), Ok(0));
        assert!(watch.has(1) && !watch.has(0));
        assert!(watch.remove(1) && !watch.remove(1) && !watch.remove(0));
        end(children.next().unwrap());
        let last = children.next().unwrap();
        assert_eq!(watch.stop(), [2], "one goes on");
        assert!(receiver.try_recv().is_err(), "the second was let go of");
        end(last);
    }

    #[test]
    fn a_process_that_has_ended_already_is_told() {
        let (sender, receiver) = mpsc::channel();
        let watch = ProcessWatch::new(move |number| sender.send(number).unwrap());
        let mut child = child();
        let handle = handle(&child);
        drop(child.stdin.take());
        child.wait().unwrap();
        watch.add(handle, 7).unwrap();
        assert_eq!(receiver.recv(), Ok(7));
        assert_eq!(watch.stop(), [0_u64; 0]);
    }
}
