//! Roles of connections.

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionRole {
    /// Read queries, which are pipelined.
    Read,
    /// Transactions of the writer.
    Write,
    /// Administrative operations, which may take long.
    Admin,
    /// Locks of the keys in flight.
    KeyLock,
}

impl ConnectionRole {
    /// Roles whose connections stay open.
    pub(super) const PERSISTENT: [Self; 3] = [Self::Read, Self::Write, Self::KeyLock];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
            Self::KeyLock => "key_lock",
        }
    }
}
