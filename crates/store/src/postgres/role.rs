//! Roles of connections.

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionRole {
    /// Statements that change nothing; several share the connection concurrently.
    Read,
    /// Transactions of the writer.
    Write,
    /// The rare changes of operators, which may take long.
    Operate,
    /// Holds the locks of the keys in flight.
    Claim,
}

impl ConnectionRole {
    /// Those whose connections stay open.
    pub(super) const PERSISTENT: [Self; 3] = [Self::Read, Self::Write, Self::Claim];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Operate => "operate",
            Self::Claim => "claim",
        }
    }
}
