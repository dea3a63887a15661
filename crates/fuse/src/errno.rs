//! Error numbers of the kernel.

mod table;

use std::fmt;
use std::num::NonZeroI32;

/// A positive error number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(NonZeroI32);

macro_rules! errnos {
    ($($name:ident)*) => {
        #[expect(missing_docs, reason = "errno(3) has their meaning")]
        impl Errno {
            $(pub const $name: Self = Self(NonZeroI32::new(libc::$name).expect("not zero"));)*
        }

        impl Errno {
            /// The name, for numbers used here.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0.get() {
                    $(libc::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    E2BIG EACCES EAGAIN EBADF EBUSY ECONNABORTED EDEADLK EDQUOT EEXIST EFBIG EINTR EINVAL EIO
    EISDIR ELOOP EMFILE EMLINK ENAMETOOLONG ENFILE ENODATA ENODEV ENOENT ENOLCK ENOMEM ENOSPC
    ENOSYS ENOTCONN ENOTDIR ENOTEMPTY ENOTSUP ENOTTY ENXIO EOVERFLOW EPERM ERANGE EROFS ESRCH
    ESTALE ETXTBSY EUCLEAN EXDEV
}

impl Errno {
    /// Converts a positive number; any other, which would be a bug, is `EIO`.
    #[must_use]
    pub const fn from_raw(raw: i32) -> Self {
        match NonZeroI32::new(raw) {
            Some(number) if raw > 0 => Self(number),
            _ => Self::EIO,
        }
    }

    /// Converts an error of the standard library; one without a number is `EIO`.
    #[must_use]
    pub fn from_io(error: &std::io::Error) -> Self {
        Self::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// The positive number.
    #[must_use]
    pub const fn raw(self) -> i32 {
        self.0.get()
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&std::io::Error::from_raw_os_error(self.raw()), f)
    }
}

#[cfg(test)]
mod tests {
    use super::Errno;

    #[test]
    fn numbers_that_are_no_errors_become_eio() {
        assert_eq!(Errno::from_raw(0), Errno::EIO);
        assert_eq!(Errno::from_raw(-2), Errno::EIO);
        assert_eq!(Errno::from_raw(libc::ENOENT), Errno::ENOENT);
    }

    #[test]
    fn names_are_shown() {
        assert_eq!(format!("{:?}", Errno::ENOTEMPTY), "ENOTEMPTY");
    }
}
