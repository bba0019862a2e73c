//! Writes: a mutation is copied into the log and into the memtable in one synchronous step.
//!
//! Invariant: the memtable of a tablet receives its mutations in the order of their positions,
//! because nothing waits between append and merge. That is why the log interval of a memtable
//! needs only a first and a last position.

use crate::commitlog::{Appended, Entry, LogError, Position};
use crate::engine::Engine;
use crate::error::{ApplyError, NoSuchTable};
use crate::memtable::NoRoom;
use crate::table::{Table, Tablet};
use model::key::DecoratedKey;
use model::mutation::Mutation;
use std::rc::Rc;

/// A write's position in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// For [`Engine::acknowledged`].
    pub position: Position,
}

impl Engine {
    /// Applies a mutation at once, without back-pressure. It is durable when
    /// [`Engine::acknowledged`] returns.
    pub fn apply(&self, mutation: &Mutation, key: &DecoratedKey) -> Result<Applied, ApplyError> {
        let (table, tablet) = self.place(mutation, key)?;
        let schema = table.schema();
        let appended = self.log().append(&schema, tablet.slot, mutation.as_bytes()).map_err(refused)?;
        Ok(self.merge(&table, &tablet, mutation, key, appended))
    }

    /// Applies a mutation as soon as memory and log have room. Returns when it is durable
    /// according to the log's sync mode.
    pub async fn apply_durably(&self, mutation: &Mutation, key: &DecoratedKey) -> Result<(), ApplyError> {
        let applied = match self.pool().is_free().then(|| self.apply(mutation, key)) {
            None | Some(Err(ApplyError::Log(LogError::Busy))) => self.apply_when_there_is_room(mutation, key).await?,
            Some(other) => other?,
        };
        self.acknowledged(applied.position).await
    }

    async fn apply_when_there_is_room(&self, mutation: &Mutation, key: &DecoratedKey) -> Result<Applied, ApplyError> {
        let _waiting = self.wait_inside(std::iter::once(mutation.table()));
        if !self.pool().is_free() {
            self.pool().admit().await.map_err(no_room)?;
        }
        let (table, tablet) = self.place(mutation, key)?;
        let schema = table.schema();
        let entry = Entry { schema: &schema, slot: tablet.slot, mutation: mutation.as_bytes() };
        let appended = self.log().append_wait(&[entry]).await.map_err(refused)?;
        Ok(self.merge(&table, &tablet, mutation, key, appended))
    }

    /// Applies several mutations as one log record: after a crash all of them are there, or none.
    pub async fn apply_group(&self, mutations: &[(Mutation, DecoratedKey)]) -> Result<(), ApplyError> {
        if mutations.is_empty() {
            return Ok(());
        }
        let tables = || mutations.iter().map(|(mutation, _)| mutation.table());
        let mut waiting = Vec::new();
        if !self.pool().is_free() {
            waiting = self.wait_inside(tables());
            self.pool().admit().await.map_err(no_room)?;
        }
        let mut places = Vec::with_capacity(mutations.len());
        for (mutation, key) in mutations {
            let (table, tablet) = self.place(mutation, key)?;
            places.push((table.schema(), table, tablet));
        }
        let entries: Vec<Entry<'_>> = places
            .iter()
            .zip(mutations)
            .map(|((schema, _, tablet), (mutation, _))| Entry {
                schema,
                slot: tablet.slot,
                mutation: mutation.as_bytes(),
            })
            .collect();
        let appended = match self.log().append_group(&entries) {
            Err(LogError::Busy) => {
                waiting.extend(self.wait_inside(tables()));
                self.log().append_wait(&entries).await
            }
            other => other,
        };
        let appended = appended.map_err(refused)?;
        for ((_, table, tablet), (mutation, key)) in places.iter().zip(mutations) {
            self.merge(table, tablet, mutation, key, appended);
        }
        drop(waiting);
        self.acknowledged(appended.position).await
    }

    /// Waits until the mutation at `position` is durable according to the log's sync mode.
    pub async fn acknowledged(&self, position: Position) -> Result<(), ApplyError> {
        Ok(self.log().acknowledged(position).await?)
    }

    fn place(&self, mutation: &Mutation, key: &DecoratedKey) -> Result<(Rc<Table>, Rc<Tablet>), ApplyError> {
        let id = mutation.table();
        let table = self.table(id).ok_or(NoSuchTable(id))?;
        let tablet = table.tablet_of(key).ok_or(ApplyError::NoSuchTablet { table: id, token: key.token })?;
        Ok((table, tablet))
    }

    fn merge(
        &self,
        table: &Table,
        tablet: &Tablet,
        mutation: &Mutation,
        key: &DecoratedKey,
        appended: Appended,
    ) -> Applied {
        debug_assert!(
            table.tablets().iter().any(|own| std::ptr::eq(&**own, tablet)),
            "a logged write goes to a tablet that is served"
        );
        let memtable = tablet.active();
        memtable.apply(&table.schema(), key, mutation);
        memtable.logged_at(appended.position);
        self.counters().writes.set(self.counters().writes.get() + 1);
        table.done.writes.set(table.done.writes.get() + 1);
        Applied { position: appended.position }
    }
}

fn no_room(why: NoRoom) -> ApplyError {
    match why {
        NoRoom::Slow => ApplyError::NoRoom,
        NoRoom::FlushesBlocked => ApplyError::NoSpace,
    }
}

fn refused(error: LogError) -> ApplyError {
    match error {
        LogError::TooLarge { len, max } => ApplyError::TooLarge { size: len, limit: max },
        other => ApplyError::Log(other),
    }
}
