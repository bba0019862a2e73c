//! Equal reads share one request to the replicas.
//!
//! While a read of a partition is in flight, the next one waits until the other ready tasks of the
//! shard have run once. Equal reads that arrive in this time join it, and are answered with its
//! page. So a partition that many clients read at the same time costs its replicas few requests. A
//! partition with one read at a time costs a lookup.
//!
//! A read never joins one that was sent to a replica: it must see all writes that were acknowledged
//! before it began.
//!
//! Only the first page of a partition is shared, and only if no other page follows. A reader that a
//! replica keeps for the next page belongs to one query. Reads that count against a rate limit are
//! not shared, because replicas count their requests. Reads that are traced are not shared.

use super::consistency::Consistency;
use super::quorum_read::QuorumPage;
use super::{RequestOptions, count};
use model::id::TableId;
use model::token::Token;
use replica::{Class, PageEnd, RateLimitMode, ReadCommand};
use rt::hash::HashMap;
use rt::sync::oneshot;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The partitions with one token of a table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct PartitionId {
    table: TableId,
    token: Token,
}

/// The reads of a partition that are in flight on this shard.
#[derive(Default)]
struct InFlight {
    /// Their number, without those that have joined another one.
    reads: u32,
    /// The read that others can join, because it was not sent yet.
    open: Option<OpenRead>,
}

/// A read that was not sent yet.
struct OpenRead {
    command: Rc<ReadCommand>,
    consistency: Consistency,
    /// The reads that have joined it.
    joined: Vec<oneshot::Sender<QuorumPage>>,
}

impl OpenRead {
    /// Whether the result of a read is the same.
    fn is_equal(&self, command: &ReadCommand, consistency: Consistency) -> bool {
        let own = &*self.command;
        self.consistency == consistency
            && own.schema_version == command.schema_version
            && own.ranges == command.ranges
            && own.now == command.now
            && own.limits == command.limits
            && own.bypass_cache == command.bypass_cache
            && own.ends_with_rows == command.ends_with_rows
            // Executions of a prepared statement have one output.
            && Rc::ptr_eq(&own.output, &command.output)
            && (Rc::ptr_eq(&own.slice, &command.slice) || own.slice == command.slice)
    }
}

/// The reads in flight of a shard, by partition.
#[derive(Default)]
pub(super) struct SharedReads {
    partitions: Rc<RefCell<HashMap<PartitionId, InFlight>>>,
    /// The number of reads that have joined another one.
    joined: Cell<u64>,
}

/// The start of a read.
pub(super) enum ReadStart {
    /// It sends requests to replicas. None: it cannot be shared.
    Sends(Option<ReadInFlight>),
    /// It has joined another read. Receives the page; or an error, if the page cannot be shared.
    Joined(oneshot::Receiver<QuorumPage>),
}

/// A read that is in flight until this is dropped.
pub(super) struct ReadInFlight {
    partitions: Rc<RefCell<HashMap<PartitionId, InFlight>>>,
    id: PartitionId,
    is_open: bool,
}

impl SharedReads {
    /// The number of reads that have joined another one.
    pub fn joined(&self) -> u64 {
        self.joined.get()
    }

    /// Starts a read. It joins an equal read that was not sent yet, if there is one.
    pub fn start(&self, command: &Rc<ReadCommand>, options: &RequestOptions) -> ReadStart {
        let Some(id) = partition_of(command, options) else { return ReadStart::Sends(None) };
        let mut partitions = self.partitions.borrow_mut();
        let InFlight { reads, open } = partitions.entry(id).or_default();
        let is_first = *reads == 0;
        match open {
            Some(open) if open.is_equal(command, options.consistency) => {
                let (sender, receiver) = oneshot::channel();
                open.joined.push(sender);
                count(&self.joined);
                return ReadStart::Joined(receiver);
            }
            _ => {}
        }
        let is_open = !is_first && open.is_none();
        if is_open {
            let (command, consistency) = (command.clone(), options.consistency);
            *open = Some(OpenRead { command, consistency, joined: Vec::new() });
        }
        *reads += 1;
        ReadStart::Sends(Some(ReadInFlight { partitions: self.partitions.clone(), id, is_open }))
    }
}

/// The partition of a read that can be shared.
fn partition_of(command: &ReadCommand, options: &RequestOptions) -> Option<PartitionId> {
    let context = &options.context;
    let is_shared = context.class == Class::User
        && context.rate_limit == RateLimitMode::Off
        && context.trace.is_none()
        && command.first_page
        && command.resumed_rows == 0;
    let [range] = &command.ranges[..] else { return None };
    let token = range.singular_token().filter(|_| is_shared)?;
    Some(PartitionId { table: command.table, token })
}

/// Whether no other page follows the page of a read.
pub(super) fn is_whole(read: &QuorumPage, command: &ReadCommand) -> bool {
    let ends = match read.page.end {
        PageEnd::Exhausted => true,
        PageEnd::Rows => command.ends_with_rows,
        _ => false,
    };
    ends && !read.has_more
}

impl ReadInFlight {
    /// Lets equal reads join until the other ready tasks have run once. Returns those that have
    /// joined. The read must be sent at once.
    pub async fn wait_for_others(&mut self) -> Vec<oneshot::Sender<QuorumPage>> {
        if !self.is_open {
            return Vec::new();
        }
        rt::task::yield_now().await;
        self.close()
    }

    fn close(&mut self) -> Vec<oneshot::Sender<QuorumPage>> {
        self.is_open = false;
        let mut partitions = self.partitions.borrow_mut();
        let open = partitions.get_mut(&self.id).and_then(|partition| partition.open.take());
        open.map(|open| open.joined).unwrap_or_default()
    }
}

impl Drop for ReadInFlight {
    fn drop(&mut self) {
        if self.is_open {
            // It was cancelled. Those that have joined it read by themselves.
            drop(self.close());
        }
        let mut partitions = self.partitions.borrow_mut();
        let Some(partition) = partitions.get_mut(&self.id) else { return };
        partition.reads -= 1;
        if partition.reads == 0 {
            debug_assert!(partition.open.is_none(), "an open read is in flight");
            partitions.remove(&self.id);
        }
    }
}
