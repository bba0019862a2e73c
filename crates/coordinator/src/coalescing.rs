//! Coalescing: concurrent equal reads of a partition share one request to the replicas.
//!
//! If an equal read is in flight, a new read is not sent at once. It leads a group: it waits until
//! the other ready tasks of the shard have run once, and equal reads that arrive meanwhile follow
//! it. Then the leader is sent, and its followers get its result. A partition that many clients
//! read at the same time costs its replicas few requests. Without concurrent reads of a partition,
//! the cost is one lookup for each read.
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
//! - Reads that are traced, also for the slow query log.

use super::consistency::Consistency;
use super::quorum_page::QuorumPage;
use super::{CoordinatorError, RequestOptions};
use model::id::TableId;
use model::token::Token;
use replica::{Class, RateLimitMode, ReadCommand};
use rt::hash::HashMap;
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
    /// Whether a read like `last` was answered by a last page.
    ends: bool,
    /// Whether the last group had followers, or other reads were in flight.
    is_concurrent: bool,
    /// The followers of the read that was not sent yet. It is like `last`.
    group: Option<(Wanted, Followers)>,
}

/// The reads in flight of a shard, by partition.
#[derive(Default)]
pub(super) struct Coalescing {
    partitions: Rc<RefCell<HashMap<PartitionId, InFlight>>>,
}

/// The start of a read.
pub(super) enum ReadStart {
    /// The read sends its own requests. None: it cannot be coalesced.
    Sends(Option<ReadInFlight>),
    /// The read follows a leader. The channel closes without a message if the leader is cancelled.
    Follows(oneshot::Receiver<LeaderResult>),
}

/// A read that sends its own requests. It is in flight until this is dropped.
pub(super) struct ReadInFlight {
    partitions: Rc<RefCell<HashMap<PartitionId, InFlight>>>,
    id: PartitionId,
    wanted: Wanted,
    leads: bool,
}

impl Coalescing {
    /// Starts a read. `ends`: whether an equal read is known to be answered by a last page.
    pub fn start(&self, command: &Rc<ReadCommand>, options: &RequestOptions, ends: bool) -> ReadStart {
        let Some(id) = partition_of(command, options) else { return ReadStart::Sends(None) };
        let consistency = options.consistency;
        let wanted = || Wanted { command: command.clone(), consistency };
        let mut partitions = self.partitions.borrow_mut();
        let partition = partitions.entry(id).or_insert_with(|| {
            let (reads, last, is_concurrent, group) = (0, wanted(), false, None);
            InFlight { reads, last, ends, is_concurrent, group }
        });
        let InFlight { reads, last, ends, is_concurrent, group } = partition;
        *is_concurrent |= *reads > 0;
        let leads = match group {
            Some((leader, followers)) if leader.is_equal(command, consistency) => {
                let (sender, receiver) = oneshot::channel();
                followers.push(sender);
                return ReadStart::Follows(receiver);
            }
            Some(_) => false,
            None => *is_concurrent && *ends && last.is_alike(command, consistency),
        };
        if leads {
            *group = Some((wanted(), Vec::new()));
        }
        *reads += 1;
        ReadStart::Sends(Some(ReadInFlight { partitions: self.partitions.clone(), id, wanted: wanted(), leads }))
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
        if self.leads {
            rt::task::yield_now().await;
        }
        self.close()
    }

    /// Ends the group, and returns the followers.
    fn close(&mut self) -> Followers {
        let mut partitions = self.partitions.borrow_mut();
        let Some(partition) = partitions.get_mut(&self.id) else { return Vec::new() };
        if !partition.last.is_alike(&self.wanted.command, self.wanted.consistency) {
            partition.ends = false;
        }
        partition.last = self.wanted.clone();
        if !std::mem::take(&mut self.leads) {
            return Vec::new();
        }
        let followers = partition.group.take().map(|(_, followers)| followers).unwrap_or_default();
        partition.is_concurrent = !followers.is_empty() || partition.reads > 1;
        followers
    }

    /// Gives the result of the read to its followers. If the read was cancelled, they start again.
    pub fn share(&self, read: &Result<QuorumPage, CoordinatorError>, followers: Followers) {
        if let Ok(page) = read {
            self.set_ends(page.is_last(&self.wanted.command));
        }
        let is_shared = match read {
            Ok(page) => page.is_last(&self.wanted.command),
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

    fn set_ends(&self, ends: bool) {
        let Wanted { command, consistency } = &self.wanted;
        match self.partitions.borrow_mut().get_mut(&self.id) {
            Some(partition) if partition.last.is_alike(command, *consistency) => partition.ends = ends,
            _ => {}
        }
    }
}

impl Drop for ReadInFlight {
    fn drop(&mut self) {
        if self.leads {
            // The leader was cancelled. Its followers start again.
            drop(self.close());
        }
        let mut partitions = self.partitions.borrow_mut();
        let Some(partition) = partitions.get_mut(&self.id) else { return };
        partition.reads -= 1;
        if partition.reads > 0 {
            return;
        }
        debug_assert!(partition.group.is_none(), "the leader of a group is in flight");
        if !partition.is_concurrent || !partition.ends {
            partitions.remove(&self.id);
        } else if partitions.values().filter(|partition| partition.reads == 0).count() > MOST_REMEMBERED {
            partitions.retain(|_, partition| partition.reads > 0);
        }
    }
}
