//! Consistency levels: how many replicas must answer.

/// A consistency level, by the protocol's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u16)]
#[allow(missing_docs)]
pub enum Consistency {
    Any = 0,
    One = 1,
    Two = 2,
    Three = 3,
    Quorum = 4,
    All = 5,
    LocalQuorum = 6,
    EachQuorum = 7,
    Serial = 8,
    LocalSerial = 9,
    LocalOne = 10,
}

use Consistency::*;

impl Consistency {
    /// All levels; each has its number as index.
    pub const ALL: [Consistency; 11] =
        [Any, One, Two, Three, Quorum, All, LocalQuorum, EachQuorum, Serial, LocalSerial, LocalOne];

    /// From the protocol's number.
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.get(code as usize).copied()
    }

    /// The name as CQL prints it.
    pub fn name(self) -> &'static str {
        match self {
            Any => "ANY",
            One => "ONE",
            Two => "TWO",
            Three => "THREE",
            Quorum => "QUORUM",
            All => "ALL",
            LocalQuorum => "LOCAL_QUORUM",
            EachQuorum => "EACH_QUORUM",
            Serial => "SERIAL",
            LocalSerial => "LOCAL_SERIAL",
            LocalOne => "LOCAL_ONE",
        }
    }

    /// How many replicas must respond, with this replication factor.
    pub fn required(self, replicas: u32) -> u32 {
        match self {
            Any | One | LocalOne => 1,
            Two => 2,
            Three => 3,
            All => replicas,
            Quorum | LocalQuorum | EachQuorum | Serial | LocalSerial => replicas / 2 + 1,
        }
    }
}
