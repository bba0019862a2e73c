//! Requests for tablets that move between shards of this node.
//!
//! While another shard hands a tablet over to this one, requests for it wait here. When this shard
//! has handed a tablet over, or is about to, requests for it are refused: a coordinator with newer
//! metadata sends them to the other shard.

use crate::error::{ReplicaError, Stale};
use crate::replica::Replica;
use crate::request::{Context, ReplicaRequest};
use engine::TabletPlace;

impl Replica {
    /// Waits until all tablets of a request are on this shard. Refuses it if one is on another
    /// shard.
    pub(crate) async fn tablets_are_here(
        &self,
        request: &ReplicaRequest,
        context: &Context,
    ) -> Result<(), ReplicaError> {
        loop {
            match self.farthest_tablet(request) {
                TabletPlace::Here => return Ok(()),
                TabletPlace::Elsewhere => return Err(ReplicaError::Stale(Stale::Moved)),
                TabletPlace::Arriving => {}
            }
            context.check_wanted()?;
            context.trace("Waiting for a tablet that moves to this shard");
            // The next round finds out why the wait has ended.
            let _ = context.deadline.limit_unless(&context.cancel, self.engine.tablet_arrival()).await;
        }
    }

    /// Checks after a read that its data was here all the time.
    #[inline]
    pub(crate) fn check_unmoved(&self, request: &ReplicaRequest, context: &Context) -> Result<(), ReplicaError> {
        if self.engine.moves_between_shards() && self.farthest_tablet(request) == TabletPlace::Elsewhere {
            return Err(ReplicaError::Stale(Stale::Moved));
        }
        self.check_fence(request, context)
    }

    /// Where the tablet of a request is that is the farthest away.
    fn farthest_tablet(&self, request: &ReplicaRequest) -> TabletPlace {
        let command = match request {
            ReplicaRequest::Read(command) => Some(&**command),
            other => other.to_compare().map(|(command, _)| command),
        };
        let ranges = command
            .into_iter()
            .flat_map(|command| command.ranges.iter().map(|range| self.engine.place_of_range(command.table, range)));
        let keys = request.mutations().iter().map(|(mutation, key)| self.engine.place_of(mutation.table(), key));
        ranges.chain(keys).max().unwrap_or(TabletPlace::Here)
    }
}
