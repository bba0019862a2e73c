//! Which node a file belongs to: written into files that would be taken for this node's own if they
//! were copied from another one.
//!
//! Sealed texts have the host id, binary headers a digest of it. Earlier states of the development
//! wrote neither: such files are accepted.

use model::HostId;

/// What is wrong with a file of another node, to follow its path in a message.
pub(crate) const IS_FOREIGN: &str = "is of another node";

/// The digest of a host id in a header. 0 in a file that does not say whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeDigest(u64);

impl NodeDigest {
    /// The digest of a node.
    pub fn of(host: HostId) -> NodeDigest {
        let (high, low) = host.0.as_u64_pair();
        NodeDigest((high ^ low).max(1))
    }

    /// As it is written.
    pub fn long(self) -> u64 {
        self.0
    }

    /// As it is written where there is room for 32 bits only.
    pub fn short(self) -> u32 {
        ((self.0 >> 32) as u32 ^ self.0 as u32).max(1)
    }

    /// Whether a file with this digest may be the node's own.
    pub fn accepts(self, written: u64) -> bool {
        written == 0 || written == self.long()
    }

    /// As [`NodeDigest::accepts`], of 32 bits.
    pub fn accepts_short(self, written: u32) -> bool {
        written == 0 || written == self.short()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn a_digest_accepts_its_own_node_and_files_without_one() {
        let [one, other] = [7, 8].map(|n| NodeDigest::of(HostId(Uuid::from_u128(n))));
        assert!(one.accepts(0) && one.accepts(one.long()) && !one.accepts(other.long()));
        assert!(one.accepts_short(0) && one.accepts_short(one.short()) && !one.accepts_short(other.short()));
        let twice = NodeDigest::of(HostId(Uuid::from_u64_pair(5, 5)));
        assert!(twice.long() != 0 && twice.short() != 0);
    }
}
