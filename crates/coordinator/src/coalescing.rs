//! Coalescing: concurrent equal reads of a partition share one request to the replicas.
//!
//! If an equal read is in flight, a new read is not sent at once. It leads a group: it waits until
//! the other ready tasks of the shard have run once, and equal reads that arrive meanwhile follow
//! it. Then the leader is sent, and its followers get its result. A partition that many clients
//! read at the same time costs its replicas few requests. Without concurrent reads of a partition,
//! each read costs two lookups: as it starts, and as it ends.
//!
//! A group with followers is remembered: the next read leads a group although no read is in flight.
//! Clients often send their next reads together, after the responses to the last ones.
//!
//! A read never follows a leader that was sent: it must see all writes that were acknowledged
//! before it began.
//!
//! Some reads are not coalesced:
//!
//! - Pages that another page follows: the reader that a replica keeps belongs to one query. Only
//!   the result shows whether a page is the last one. So reads are coalesced once an equal read was
//!   answered by a last page.
//! - Later pages.
//! - Reads that count against a rate limit, and all reads while the hot partition protection
//!   refuses requests: replicas count each request.
//! - Traced reads, including those traced for the slow query log.

use super::consistency::Consistency;
use super::quorum_page::QuorumPage;
use super::{CoordinatorError, RequestOptions};
use model::id::TableId;
use model::token::Token;
use replica::{Class, RateLimitMode, ReadCommand};
use rt::hash::{Entry, HashMap};
use rt::sync::oneshot;
use std::cell::RefCell;
use std::rc::Rc;

/// What a follower gets from its leader.
pub(super) enum LeaderResult {
    /// The result of both.
    Shared(Result<QuorumPage, CoordinatorError>),
    /// The leader's result is valid for the leader only: the follower must read by itself.
    NotShared,
}

/// The channels of followers.
type Followers = Vec<oneshot::Sender<LeaderResult>>;

/// The partitions with one token of a table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct PartitionId {
    table: TableId,
    token: Token,
}

/// A read without what differs between equal reads.
#[derive(Clone)]
struct Wanted {
    command: Rc<ReadCommand>,
    consistency: Consistency,
}

impl Wanted {
    /// Whether another read has the same result.
    fn is_equal(&self, command: &ReadCommand, consistency: Consistency) -> bool {
        self.command.now == command.now && self.is_alike(command, consistency)
    }

    /// Whether another read is equal, but for the time at which TTLs are evaluated.
    fn is_alike(&self, command: &ReadCommand, consistency: Consistency) -> bool {
        let own = &*self.command;
        self.consistency == consistency
            && own.schema_version == command.schema_version
            && own.ranges == command.ranges
            && own.limits == command.limits
            && own.bypass_cache == command.bypass_cache
            && own.ends_with_rows == command.ends_with_rows
            // All executions of a prepared statement share one output. So reads of different
            // statements are never equal.
            && Rc::ptr_eq(&own.output, &command.output)
            && (Rc::ptr_eq(&own.slice, &command.slice) || own.slice == command.slice)
    }
}

/// The most partitions that are remembered without a read in flight.
const MOST_REMEMBERED: usize = 64;

/// The reads of a partition that are in flight on this shard.
struct InFlight {
    /// The number of reads that send requests. Followers are not counted.
    reads: u32,
    /// The read that was sent last.
    last: Wanted,
    /// The number of times that `last` was replaced by a read that is not like it.
    changes: u32,
    /// Whether a read like `last` was answered by a last page.
    ends: bool,
    /// Whether the last group had followers, or other reads were in flight.
    is_concurrent: bool,
    /// The leader that was not sent yet, and its followers.
    group: Option<(Wanted, Followers)>,
}

/// The partitions of a shard with reads in flight, and those that are remembered.
#[derive(Default)]
struct Partitions {
    by_id: HashMap<PartitionId, InFlight>,
    /// The number of partitions without a read in flight.
    remembered: usize,
}

/// The reads in flight of a shard.
#[derive(Default)]
pub(super) struct Coalescing(Rc<RefCell<Partitions>>);

/// The start of a read.
pub(super) enum ReadStart {
    /// The read sends its own requests. None: it cannot be coalesced.
    Sends(Option<ReadInFlight>),
    /// The read follows a leader. The channel closes without a message if the leader is cancelled.
    Follows(oneshot::Receiver<LeaderResult>),
}

/// A read that sends its own requests. It is in flight until this is dropped.
pub(super) struct ReadInFlight {
    partitions: Rc<RefCell<Partitions>>,
    id: PartitionId,
    /// [`InFlight::changes`] when the read started.
    changes: u32,
    leads: bool,
    /// Whether it was answered by a last page. None: it was not answered by a page.
    ends: Option<bool>,
}

impl Coalescing {
    /// Starts a read. `ends`: whether an equal read is known to be answered by a last page.
    pub fn start(&self, command: &Rc<ReadCommand>, options: &RequestOptions, ends: bool) -> ReadStart {
        let Some(id) = partition_of(command, options) else { return ReadStart::Sends(None) };
        let consistency = options.consistency;
        let wanted = || Wanted { command: command.clone(), consistency };
        let sends = |changes, leads| {
            let partitions = self.0.clone();
            ReadStart::Sends(Some(ReadInFlight { partitions, id, changes, leads, ends: None }))
        };
        let Partitions { by_id, remembered } = &mut *self.0.borrow_mut();
        let mut entry = match by_id.entry(id) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) => {
                let (reads, last, changes, is_concurrent, group) = (1, wanted(), 0, false, None);
                entry.insert(InFlight { reads, last, changes, ends, is_concurrent, group });
                return sends(changes, false);
            }
        };
        let InFlight { reads, last, changes, ends, is_concurrent, group } = entry.get_mut();
        if *reads == 0 {
            *remembered -= 1;
        } else {
            *is_concurrent = true;
        }
        if let Some((_, followers)) = group.as_mut().filter(|(leader, _)| leader.is_equal(command, consistency)) {
            let (sender, receiver) = oneshot::channel();
            followers.push(sender);
            return ReadStart::Follows(receiver);
        }
        let is_alike = last.is_alike(command, consistency);
        let leads = group.is_none() && *is_concurrent && *ends && is_alike;
        if leads {
            *group = Some((wanted(), Vec::new()));
        } else if !is_alike {
            (*last, *ends, *changes) = (wanted(), false, changes.wrapping_add(1));
        }
        *reads += 1;
        sends(*changes, leads)
    }
}

/// The partition of a read that may be coalesced.
fn partition_of(command: &ReadCommand, options: &RequestOptions) -> Option<PartitionId> {
    let context = &options.context;
    let is_plain = context.class == Class::User
        && context.rate_limit == RateLimitMode::Off
        && context.trace.is_none()
        && command.first_page
        && command.resumed_rows == 0;
    let [range] = &command.ranges[..] else { return None };
    let token = range.singular_token().filter(|_| is_plain)?;
    Some(PartitionId { table: command.table, token })
}

impl ReadInFlight {
    /// Waits for followers if the read leads a group, until the other ready tasks have run once.
    /// The caller must then send its requests without another wait: a follower that came later
    /// could miss a write.
    pub async fn gather_followers(&mut self) -> Followers {
        if !self.leads {
            return Vec::new();
        }
        rt::task::yield_now().await;
        self.leads = false;
        let partitions = &mut *self.partitions.borrow_mut();
        let partition = partitions.by_id.get_mut(&self.id).expect("the partition has a read in flight");
        let followers = partition.group.take().map(|(_, followers)| followers).unwrap_or_default();
        partition.is_concurrent = !followers.is_empty() || partition.reads > 1;
        followers
    }

    /// Gives the result of the read to its followers. If the read was cancelled, they start again.
    /// `is_last`: whether the result is a page that no other one follows.
    pub fn share(&mut self, read: &Result<QuorumPage, CoordinatorError>, is_last: bool, followers: Followers) {
        let is_shared = match read {
            Ok(_) => {
                self.ends = Some(is_last);
                is_last
            }
            Err(CoordinatorError::Cancelled) => return,
            // Replicas decide on each request.
            Err(CoordinatorError::RateLimited { .. }) => false,
            Err(_) => true,
        };
        for follower in followers {
            let result = if is_shared { LeaderResult::Shared(read.clone()) } else { LeaderResult::NotShared };
            // A follower that was cancelled does not receive it.
            drop(follower.send(result));
        }
    }
}

impl Drop for ReadInFlight {
    fn drop(&mut self) {
        let Partitions { by_id, remembered } = &mut *self.partitions.borrow_mut();
        let Entry::Occupied(mut entry) = by_id.entry(self.id) else { return };
        let partition = entry.get_mut();
        if self.leads {
            // It was cancelled before it was sent. Its followers start again.
            partition.group = None;
        }
        if let Some(ends) = self.ends
            && partition.changes == self.changes
        {
            partition.ends = ends;
        }
        partition.reads -= 1;
        if partition.reads > 0 {
            return;
        }
        debug_assert!(partition.group.is_none(), "the leader of a group is in flight");
        if !partition.is_concurrent || !partition.ends {
            entry.remove();
            return;
        }
        *remembered += 1;
        if *remembered > MOST_REMEMBERED {
            by_id.retain(|_, partition| partition.reads > 0);
            *remembered = 0;
        }
    }
}

#[cfg(test)]
mod tests;
