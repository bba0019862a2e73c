//! A page that the replicas of a tablet agree on.

use super::paging::LastReplicas;
use replica::{Page, PageEnd, ReadCommand};

/// A page on which the replicas agree.
#[derive(Clone)]
pub(super) struct QuorumPage {
    pub page: Box<Page>,
    /// No limit was reached, but more data follows: the caller must ask for it.
    pub has_more: bool,
    /// The replicas that agree. None where the tablet has a single replica.
    pub by: Option<LastReplicas>,
}

impl QuorumPage {
    /// Whether no other page of the query follows. `command`: the command that returned this page.
    pub fn is_last(&self, command: &ReadCommand) -> bool {
        let ends = match self.page.end {
            PageEnd::Exhausted => true,
            PageEnd::Rows => command.ends_with_rows,
            PageEnd::Bytes | PageEnd::Tombstones => false,
        };
        ends && !self.has_more
    }
}
