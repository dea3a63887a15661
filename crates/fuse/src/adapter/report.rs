//! Reports of the daemon, and requests to it: attributes of the root directory that are neither
//! stored nor listed. Only root and the daemon's user may use them, but for reports that have a
//! value for each user. The reports can also be read by an ioctl ([`crate::report`]).

use stitch_base::Ino;
use stitch_base::sync::Arc;

use super::process::Process;
use crate::errno::Errno;
use crate::handler::{Answer, Context};
use crate::wire::codec::Sink;

/// Accepts a value that the attribute is set to.
type Take = Arc<dyn Fn(&[u8]) -> Result<(), Errno> + Send + Sync>;

/// Returns the value that is for one user, by the user's number.
type MakeFor = Arc<dyn Fn(u32) -> Vec<u8> + Send + Sync>;

/// An attribute that is computed on demand.
#[derive(Clone)]
pub struct RootReport {
    name: &'static str,
    make: Arc<dyn Fn() -> Vec<u8> + Send + Sync>,
    /// Returns the value for a user who may not see all.
    make_for: Option<MakeFor>,
    take: Option<Take>,
}

impl RootReport {
    /// Creates the attribute `name`, whose value `make` returns.
    #[must_use]
    pub fn new(name: &'static str, make: Arc<dyn Fn() -> Vec<u8> + Send + Sync>) -> Self {
        Self {
            name,
            make,
            make_for: None,
            take: None,
        }
    }

    /// Adds a function that returns what another user than root and the daemon's may see.
    #[must_use]
    pub fn with_users(mut self, make_for: MakeFor) -> Self {
        self.make_for = Some(make_for);
        self
    }

    /// Adds a function that accepts values set to the attribute: requests to the daemon.
    #[must_use]
    pub fn with_requests(mut self, take: Take) -> Self {
        self.take = Some(take);
        self
    }

    pub(super) fn is_asked(&self, ino: Ino, name: &[u8]) -> bool {
        ino == Ino::ROOT && name == self.name.as_bytes()
    }

    pub(super) fn request(&self, context: &Context<'_>, value: &[u8]) -> Answer<()> {
        check_caller(context)?;
        self.take.as_ref().ok_or(Errno::EPERM)?(value)
    }

    pub(super) fn answer(&self, context: &Context<'_>, out: &mut Sink<'_>) -> Answer<()> {
        if out.put(&self.value_for(context)?) {
            Ok(())
        } else {
            Err(Errno::E2BIG)
        }
    }

    /// Writes the report as the reply to an ioctl.
    pub(super) fn answer_framed(&self, context: &Context<'_>, out: &mut Sink<'_>) -> Answer<()> {
        put_framed(&self.value_for(context)?, out)
    }

    /// Returns the value that the caller may see.
    fn value_for(&self, context: &Context<'_>) -> Answer<Vec<u8>> {
        match (check_caller(context), &self.make_for) {
            (Ok(()), _) => Ok((self.make)()),
            (Err(_), Some(make_for)) => {
                let user = Process::of(context).uid().ok_or(Errno::EACCES)?;
                debug_assert_ne!(user, 0, "root sees all");
                Ok(make_for(user))
            }
            (Err(refused), None) => Err(refused),
        }
    }
}

/// Writes a report with its length, as the reply to an ioctl.
pub(super) fn put_framed(report: &[u8], out: &mut Sink<'_>) -> Answer<()> {
    match crate::report::frame(report, out) {
        true => Ok(()),
        false => Err(Errno::E2BIG),
    }
}

/// Checks that the caller is root or the user of the daemon.
pub(super) fn check_caller(context: &Context<'_>) -> Answer<()> {
    match Process::of(context).uid() {
        Some(0) => Ok(()),
        Some(uid) if uid == rustix::process::geteuid().as_raw() => Ok(()),
        _ => Err(Errno::EACCES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::Caller;
    use crate::wire::args::Groups;

    fn context(uid: u32) -> Context<'static> {
        let caller = Caller {
            uid,
            gid: 0,
            pid: 1,
        };
        Context {
            caller,
            unique: 1,
            groups: Groups::default(),
        }
    }

    fn ask(uid: u32, limit: usize) -> Result<Vec<u8>, Errno> {
        let report = RootReport::new("a.b", Arc::new(|| b"value".to_vec()));
        let context = context(uid);
        let mut out = Vec::new();
        report.answer(&context, &mut Sink::new(&mut out, limit))?;
        Ok(out)
    }

    fn ask_framed(uid: u32, limit: usize) -> Result<Vec<u8>, Errno> {
        let report = RootReport::new("a.b", Arc::new(|| b"value".to_vec()));
        let mut out = Vec::new();
        report.answer_framed(&context(uid), &mut Sink::new(&mut out, limit))?;
        Ok(out)
    }

    #[test]
    fn root_and_the_daemons_user_are_answered() {
        let me = rustix::process::geteuid().as_raw();
        assert_eq!(ask(0, 64), Ok(b"value".to_vec()));
        assert_eq!(ask(me, 64), Ok(b"value".to_vec()));
        assert_eq!(ask(me.wrapping_add(1000), 64), Err(Errno::EACCES));
        assert_eq!(ask(0, 2), Err(Errno::E2BIG));
    }

    #[test]
    fn other_users_are_answered_where_there_is_something_for_them() {
        let other = rustix::process::geteuid().as_raw().wrapping_add(1000);
        let report = RootReport::new("a.b", Arc::new(|| b"value".to_vec()));
        let report = report.with_users(Arc::new(|user| user.to_string().into_bytes()));
        let ask = |uid| {
            let mut out = Vec::new();
            report.answer(&context(uid), &mut Sink::new(&mut out, 64))?;
            Ok::<_, Errno>(out)
        };
        assert_eq!(ask(0), Ok(b"value".to_vec()));
        assert_eq!(ask(other), Ok(other.to_string().into_bytes()));
    }

    #[test]
    fn an_ioctl_is_answered_to_the_same_callers() {
        let me = rustix::process::geteuid().as_raw();
        assert_eq!(ask_framed(0, 64).map(|out| out.len()), Ok(4 + 5));
        assert!(ask_framed(me, 64).is_ok());
        assert_eq!(ask_framed(me.wrapping_add(1000), 64), Err(Errno::EACCES));
        assert_eq!(ask_framed(0, 8), Err(Errno::E2BIG));
    }

    #[test]
    fn requests_are_taken_from_them_only_and_where_they_are_wanted() {
        let report = RootReport::new("a.b", Arc::new(Vec::new));
        assert_eq!(report.request(&context(0), b"do"), Err(Errno::EPERM));
        let take: Take = Arc::new(|value| match value {
            b"do" => Ok(()),
            _ => Err(Errno::EINVAL),
        });
        let report = report.with_requests(take);
        assert_eq!(report.request(&context(0), b"do"), Ok(()));
        assert_eq!(report.request(&context(0), b"don't"), Err(Errno::EINVAL));
        let other = rustix::process::geteuid().as_raw().wrapping_add(1000);
        assert_eq!(report.request(&context(other), b"do"), Err(Errno::EACCES));
    }

    #[test]
    fn it_is_one_attribute_of_the_root() {
        let report = RootReport::new("a.b", Arc::new(Vec::new));
        assert!(report.is_asked(Ino::ROOT, b"a.b"));
        assert!(!report.is_asked(Ino::ROOT, b"a.bc"));
        assert!(!report.is_asked(Ino(2), b"a.b"));
    }
}
