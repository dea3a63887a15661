//! What the daemon says about itself: an attribute of the root directory that is not stored, not
//! listed, and for root and the user of the daemon only.

use stitch_base::Ino;
use stitch_base::sync::Arc;

use crate::errno::Errno;
use crate::handler::{Answer, Context};
use crate::wire::codec::Sink;

/// An attribute that is made when it is asked for.
#[derive(Clone)]
pub struct RootReport {
    name: &'static str,
    make: Arc<dyn Fn() -> Vec<u8> + Send + Sync>,
}

impl RootReport {
    /// The attribute `name`, with the value that `make` gives.
    #[must_use]
    pub fn new(name: &'static str, make: Arc<dyn Fn() -> Vec<u8> + Send + Sync>) -> Self {
        Self { name, make }
    }

    pub(super) fn is_asked(&self, ino: Ino, name: &[u8]) -> bool {
        ino == Ino::ROOT && name == self.name.as_bytes()
    }

    pub(super) fn answer(&self, context: &Context<'_>, out: &mut Sink<'_>) -> Answer<()> {
        let uid = context.caller.uid;
        if uid != 0 && uid != rustix::process::geteuid().as_raw() {
            return Err(Errno::EACCES);
        }
        if out.put(&(self.make)()) {
            Ok(())
        } else {
            Err(Errno::E2BIG)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::Caller;
    use crate::wire::args::Groups;

    fn ask(uid: u32, limit: usize) -> Result<Vec<u8>, Errno> {
        let report = RootReport::new("a.b", Arc::new(|| b"value".to_vec()));
        let caller = Caller {
            uid,
            gid: 0,
            pid: 1,
        };
        let context = Context {
            caller,
            unique: 1,
            groups: Groups::default(),
        };
        let mut out = Vec::new();
        report.answer(&context, &mut Sink::new(&mut out, limit))?;
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
    fn it_is_one_attribute_of_the_root() {
        let report = RootReport::new("a.b", Arc::new(Vec::new));
        assert!(report.is_asked(Ino::ROOT, b"a.b"));
        assert!(!report.is_asked(Ino::ROOT, b"a.bc"));
        assert!(!report.is_asked(Ino(2), b"a.b"));
    }
}
