//! Ids and units. Each is its own type, so that a log position is never taken for a sequence
//! number, nor a count of blocks for a length in bytes.

use std::fmt;

macro_rules! newtype {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            /// The next value in order.
            ///
            /// # Panics
            /// At the end of the number range, which no store reaches.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0.checked_add(1).expect("ids do not run out"))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

newtype! {
    /// Number of an inode. Stable for ever, never reused while a program can hold it. 1 is the
    /// root.
    Ino(u64)
}
newtype! {
    /// A length in bytes.
    ByteLen(u64)
}
newtype! {
    /// Order of a key-value write. 0 is before every write.
    Seqno(u64)
}
newtype! {
    /// Position in the backup log, in bytes since the log's first record ever.
    Lsn(u64)
}
newtype! {
    /// Counts the times that a volume was opened for writing.
    Generation(u64)
}
newtype! {
    /// Number of a table, never reused in a volume.
    TableId(u64)
}
newtype! {
    /// Number of a tree, never reused in a store. 0 is never given out.
    TreeId(u32)
}
newtype! {
    /// Number of a pin, never reused in a store. 0 is never given out.
    PinId(u64)
}
newtype! {
    /// Number of a zone, from 0.
    ZoneId(u32)
}

impl Ino {
    /// The root directory.
    pub const ROOT: Self = Self(1);
}
