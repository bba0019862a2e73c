//! The metadata snapshot: schema, topology and tablets of the whole cluster. Immutable; snapshots
//! share the parts that a change leaves alone.
//!
//! Every shard builds its own by applying the same changes, so that cores share none of it.

mod ops;
mod type_checks;

use self::ops::{keyspace_ops, table_ops};
use super::definition::{Change, KeyspaceDefinition, Op, TableDefinition, TransitionDefinition, TypeDefinition};
use super::paging_keys::PagingKeys;
use super::shared::{ById, SharedMap};
use crate::tablets::transition::{Replicas, Stage, Transition, TransitionKind};
use crate::tablets::{TabletMap, TabletReplica};
use crate::topology::Topology;
use crate::topology::requests::TopologyRequests;
use model::id::{HostId, TableId};
use model::options::OptionMap;
use model::schema::{Column, ColumnKind, DroppedColumn, TableSchema};
use model::types::parse::Room;
use model::types::{self, CqlType, UserType};
use rt::hash::HashMap;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use thiserror::Error;
use uuid::Uuid;

/// The version of the metadata of a cluster in which nothing was ever created.
pub const INITIAL_VERSION: Uuid = Uuid::from_u128(0x59adb24e_f3cd_3e02_97f0_5b395827453f);

/// Why a change does not fit the metadata.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum MetadataError {
    /// The change is for another version.
    #[error("the metadata has changed meanwhile: the change is for version {expected}, the current one is {current}")]
    Stale {
        /// The version that the change is for.
        expected: Uuid,
        /// The current version.
        current: Uuid,
    },
    /// The change names something that does not exist, or contradicts itself.
    #[error("the change does not fit the metadata: {0}")]
    Broken(String),
    /// No node could start with the metadata after the change.
    #[error("the change leads to metadata that cannot be restored from a snapshot: {0}")]
    Unrestorable(String),
}

/// A keyspace with its tables and types.
#[derive(Clone, Debug)]
pub struct Keyspace {
    /// Its definition.
    pub definition: KeyspaceDefinition,
    /// The replication options that it gets once its tablets have the replicas for them. Until
    /// then, levels count by its definition.
    pub wanted_replication: Option<OptionMap>,
    /// Its tables by name.
    pub tables: SharedMap<String, Rc<Table>>,
    /// Its types by name.
    pub types: BTreeMap<String, Arc<UserType>>,
    /// The identities of its types by name. A type that release 0.1.0 created has none.
    pub type_identities: BTreeMap<String, Uuid>,
}

/// A table.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its schema.
    pub schema: Rc<TableSchema>,
    /// The definition that the schema was built from.
    pub definition: Rc<TableDefinition>,
    /// The replicas of its tablets.
    pub tablets: Rc<TabletMap>,
    /// The number of the metadata that the last TRUNCATE led to; older data is discarded. 0 if the
    /// table was never truncated.
    pub epoch: u64,
}

impl Table {
    /// Whether the other table has the same directory, that is, the same id and name.
    pub fn has_directory_of(&self, other: &Table) -> bool {
        let (own, other) = (&self.schema, &other.schema);
        (own.id, &own.keyspace, &own.name) == (other.id, &other.keyspace, &other.name)
    }
}

/// A snapshot.
#[derive(Clone, Debug)]
pub struct Metadata {
    /// The number of changes. The same number means the same metadata on every shard and node.
    pub number: u64,
    /// The schema version that clients compare to check for agreement.
    pub version: Uuid,
    /// The keyspaces by name.
    pub keyspaces: SharedMap<String, Rc<Keyspace>>,
    /// The keys that authenticate paging states.
    pub paging_keys: Rc<PagingKeys>,
    /// The nodes of the cluster, the enabled features and the fence.
    pub topology: Topology,
    /// The requests that change the cluster.
    pub requests: Rc<TopologyRequests>,
    /// The salts of the ids of prepared statements, by keyspace and table; see [`Op::RetireIds`].
    retired_ids: Rc<BTreeMap<(String, String), Uuid>>,
    tables: ById<Rc<Table>>,
    /// The number of tablets on each shard of each host.
    load: Rc<HashMap<TabletReplica, u32>>,
}

impl Metadata {
    /// The metadata before any change.
    pub fn empty() -> Metadata {
        Metadata {
            number: 0,
            version: INITIAL_VERSION,
            keyspaces: SharedMap::default(),
            paging_keys: Rc::default(),
            topology: Topology::default(),
            requests: Rc::default(),
            retired_ids: Rc::default(),
            tables: ById::default(),
            load: Rc::default(),
        }
    }

    /// The keyspace with a name.
    #[inline]
    pub fn keyspace(&self, name: &str) -> Option<&Rc<Keyspace>> {
        self.keyspaces.get(name)
    }

    /// The table with a name.
    pub fn table(&self, keyspace: &str, name: &str) -> Option<&Rc<Table>> {
        self.keyspaces.get(keyspace)?.tables.get(name)
    }

    /// The identity of a user type, if it has one. ALTER TYPE keeps it; a later type of the same
    /// name has another.
    pub fn type_identity(&self, keyspace: &str, name: &str) -> Option<Uuid> {
        self.keyspace(keyspace)?.type_identities.get(name).copied()
    }

    /// The table with an id.
    #[inline]
    pub fn table_by_id(&self, id: TableId) -> Option<&Rc<Table>> {
        self.tables.get(id)
    }

    /// The salt of statement ids for the table of this name. `None` unless an earlier table of this
    /// name retired the ids without salt.
    pub fn id_salt(&self, keyspace: &str, table: &str) -> Option<Uuid> {
        if self.retired_ids.is_empty() {
            return None;
        }
        self.retired_ids.get(&(keyspace.to_owned(), table.to_owned())).copied()
    }

    /// The names of the tables with retired ids.
    pub(super) fn retired_names(&self) -> impl Iterator<Item = &(String, String)> {
        self.retired_ids.keys()
    }

    /// All tables.
    pub fn tables(&self) -> impl Iterator<Item = &Rc<Table>> {
        self.keyspaces.values().flat_map(|keyspace| keyspace.tables.values())
    }

    /// All tablets with a transition, with their tables.
    pub fn transitions(&self) -> impl Iterator<Item = (&Rc<Table>, u32, &Transition)> {
        self.tables().flat_map(|table| table.tablets.transitions().map(move |(tablet, moving)| (table, tablet, moving)))
    }

    /// Whether data may still be streamed under a session. Data that arrives after its session has
    /// ended must have no effect.
    pub fn session_is_open(&self, session: Uuid) -> bool {
        self.transitions().any(|(_, _, moving)| moving.session == Some(session))
    }

    /// The number of tables.
    pub fn table_count(&self) -> usize {
        self.tables.len()
    }

    /// The number of tablets on each shard of a host.
    pub fn load(&self, host: HostId, shards: usize) -> Vec<u32> {
        let of = |shard| self.load.get(&TabletReplica { host, shard }).copied().unwrap_or(0);
        (0..shards).map(|shard| of(shard as u16)).collect()
    }

    /// The metadata after a change.
    pub fn apply(&self, change: &Change) -> Result<Metadata, MetadataError> {
        let mut next = self.clone();
        next.advance(change)?;
        Ok(next)
    }

    /// Applies a change in place, and copies only the parts that other snapshots share. After an
    /// error the result is unusable.
    pub fn advance(&mut self, change: &Change) -> Result<(), MetadataError> {
        if change.previous != self.version {
            return Err(MetadataError::Stale { expected: change.previous, current: self.version });
        }
        for op in &change.ops {
            self.step(op)?;
        }
        self.number += 1;
        self.version = change.new;
        if let Some(requests) = self.requests.follow(self, change) {
            self.requests = Rc::new(requests);
        }
        Ok(())
    }

    /// The metadata after these operations, under the same number. For built-in tables, and to
    /// check a change in advance.
    pub fn with(&self, ops: &[Op]) -> Result<Metadata, MetadataError> {
        let mut next = self.clone();
        for op in ops {
            next.step(op)?;
        }
        Ok(next)
    }

    /// The operations that build this metadata from nothing: the content of a snapshot. Built-in
    /// keyspaces are left out.
    pub fn as_ops(&self, built_in: impl Fn(&str) -> bool) -> Vec<Op> {
        self.ops(built_in).collect()
    }

    /// The same operations, made one after the other.
    pub fn ops<'a>(&'a self, built_in: impl Fn(&str) -> bool + 'a) -> impl Iterator<Item = Op> + 'a {
        let keyspaces = self.keyspaces.values().filter(move |keyspace| !built_in(&keyspace.definition.name));
        let of_keyspace = |keyspace: &'a Rc<Keyspace>| {
            keyspace_ops(keyspace).into_iter().chain(keyspace.tables.values().flat_map(|table| table_ops(table)))
        };
        self.cluster_ops().into_iter().chain(keyspaces.flat_map(of_keyspace))
    }

    /// The operations that belong to no keyspace.
    fn cluster_ops(&self) -> Vec<Op> {
        let mut ops: Vec<Op> = self.paging_keys.iter().cloned().map(Op::PutPagingKey).collect();
        ops.extend(self.topology.nodes().map(|node| Op::PutNode(Box::new((**node).clone()))));
        ops.extend(self.topology.runs().map(|(host, run)| Op::PutRun { host, run }));
        let features = self.topology.enabled_features();
        if !features.is_empty() {
            ops.push(Op::EnableFeatures(features.iter().cloned().collect()));
        }
        if self.topology.fence() > 0 {
            ops.push(Op::Fence(self.topology.fence()));
        }
        if !self.topology.is_balancing() {
            ops.push(Op::SetBalancing(false));
        }
        ops.extend(self.requests.iter().cloned().map(|request| Op::PutTopologyRequest(Box::new(request))));
        ops.extend(self.retired_ids.iter().map(|((keyspace, table), salt)| Op::RetireIds {
            keyspace: keyspace.clone(),
            table: table.clone(),
            salt: *salt,
        }));
        ops
    }

    fn edit(&mut self, keyspace: &str, edit: impl FnOnce(&mut Keyspace)) -> Result<(), MetadataError> {
        let found = self.keyspaces.get_mut(keyspace);
        edit(Rc::make_mut(found.ok_or_else(|| MetadataError::Broken(format!("no keyspace {keyspace}")))?));
        Ok(())
    }

    fn step(&mut self, op: &Op) -> Result<(), MetadataError> {
        match op {
            Op::PutKeyspace(definition) => match self.keyspaces.get_mut(&definition.name) {
                Some(keyspace) => Rc::make_mut(keyspace).definition = definition.clone(),
                None => {
                    let keyspace = Keyspace {
                        definition: definition.clone(),
                        wanted_replication: None,
                        tables: SharedMap::default(),
                        types: BTreeMap::new(),
                        type_identities: BTreeMap::new(),
                    };
                    self.keyspaces.insert(definition.name.clone(), Rc::new(keyspace));
                }
            },
            Op::PutWantedReplication { keyspace, replication } => {
                self.edit(keyspace, |keyspace| keyspace.wanted_replication = replication.clone())?;
            }
            Op::DropKeyspace(name) => {
                let keyspace =
                    self.keyspaces.remove(name).ok_or_else(|| MetadataError::Broken(format!("no keyspace {name}")))?;
                for table in keyspace.tables.values() {
                    self.forget(table);
                }
            }
            Op::PutType(definition) => {
                let user_type = Arc::new(self.resolve_type(definition)?);
                self.edit(&definition.keyspace, |keyspace| {
                    keyspace.types.insert(definition.name.clone(), user_type);
                })?;
            }
            Op::DropType { keyspace, name } => self.edit(keyspace, |keyspace| {
                keyspace.types.remove(name);
                keyspace.type_identities.remove(name);
            })?,
            Op::IdentifyType { keyspace, name, identity } => self.edit(keyspace, |keyspace| {
                keyspace.type_identities.insert(name.clone(), *identity);
            })?,
            Op::PutTable(definition) => {
                let schema = Rc::new(self.resolve_table(definition)?);
                let (tablets, epoch) = match self.tables.get(definition.id) {
                    Some(table) => (table.tablets.clone(), table.epoch),
                    None => (Rc::new(TabletMap::new(vec![SmallVec::new()]).expect("one tablet")), 0),
                };
                self.put_table(Table { schema, definition: Rc::new((**definition).clone()), tablets, epoch })?;
            }
            Op::PutTablets(definition) => {
                let table = self.tables.get(definition.table);
                let table = table.ok_or_else(|| MetadataError::Broken(format!("no table {}", definition.table)))?;
                let replicas: Vec<SmallVec<[TabletReplica; 1]>> =
                    definition.replicas.iter().map(|replicas| SmallVec::from_slice(replicas)).collect();
                let tablets =
                    TabletMap::new(replicas).ok_or_else(|| MetadataError::Broken("a tablet map's size".into()))?;
                let table = Table { tablets: Rc::new(tablets), ..(**table).clone() };
                self.put_table(table)?;
            }
            Op::PutTransition(definition) => {
                let transition = transition_of(definition)?;
                self.edit_tablet(definition.table, definition.tablet, |tablets| {
                    tablets.set_transition(definition.tablet, transition);
                    true
                })?;
            }
            Op::EndTransition { table, tablet, moved } => {
                self.edit_tablet(*table, *tablet, |tablets| tablets.end_transition(*tablet, *moved))?;
            }
            Op::Fence(number) => self.topology.raise_fence(*number),
            Op::Truncate { table, epoch } => {
                let known = self.tables.get(*table).cloned();
                let known = known.ok_or_else(|| MetadataError::Broken(format!("no table {table}")))?;
                let epoch = known.epoch.max(*epoch);
                self.show(Rc::new(Table { epoch, ..(*known).clone() }))?;
            }
            Op::DropTable { keyspace, name } => {
                let mut dropped = None;
                self.edit(keyspace, |keyspace| dropped = keyspace.tables.remove(name))?;
                let dropped = dropped.ok_or_else(|| MetadataError::Broken(format!("no table {keyspace}.{name}")))?;
                self.forget(&dropped);
            }
            Op::PutPagingKey(key) => Rc::make_mut(&mut self.paging_keys).put(key.clone()),
            Op::DropPagingKey(id) => Rc::make_mut(&mut self.paging_keys).drop_key(*id),
            Op::PutNode(node) => self.topology.put((**node).clone()),
            Op::PutRun { host, run } => self.topology.put_run(*host, *run),
            Op::RemoveNode(host) => {
                if !self.topology.remove(*host) {
                    return Err(MetadataError::Broken(format!("no node {host}")));
                }
            }
            Op::PutTopologyRequest(request) => Rc::make_mut(&mut self.requests).put((**request).clone()),
            Op::EnableFeatures(features) => self.topology.enable(features),
            Op::SetBalancing(on) => self.topology.set_balancing(*on),
            Op::RetireIds { keyspace, table, salt } => {
                Rc::make_mut(&mut self.retired_ids).insert((keyspace.clone(), table.clone()), *salt);
            }
        }
        Ok(())
    }

    /// Changes a table's map for one tablet. `edit` returns false if the change does not fit.
    fn edit_tablet(
        &mut self,
        table: TableId,
        tablet: u32,
        edit: impl FnOnce(&mut TabletMap) -> bool,
    ) -> Result<(), MetadataError> {
        let known = self.tables.get(table).filter(|known| tablet < known.tablets.count()).cloned();
        let known = known.ok_or_else(|| MetadataError::Broken(format!("no tablet {tablet} of table {table}")))?;
        let mut tablets = (*known.tablets).clone();
        if !edit(&mut tablets) {
            return Err(MetadataError::Broken(format!("tablet {tablet} of table {table} is not moving")));
        }
        let load = Rc::make_mut(&mut self.load);
        let mut weigh = |replica: TabletReplica, change: fn(u32, u32) -> u32| {
            let count = load.entry(replica).or_default();
            *count = change(*count, 1);
        };
        known.tablets.holders(tablet).for_each(|replica| weigh(replica, u32::wrapping_sub));
        tablets.holders(tablet).for_each(|replica| weigh(replica, u32::wrapping_add));
        let table = Rc::new(Table { tablets: Rc::new(tablets), ..(*known).clone() });
        self.show(table)
    }

    fn put_table(&mut self, table: Table) -> Result<(), MetadataError> {
        let table = Rc::new(table);
        let before = self.tables.get(table.schema.id).cloned();
        if !before.as_ref().is_some_and(|before| Rc::ptr_eq(&before.tablets, &table.tablets)) {
            self.weigh(&table, u32::wrapping_add);
            if let Some(before) = before {
                self.weigh(&before, u32::wrapping_sub);
            }
        }
        self.show(table)
    }

    /// Stores a table, by id and by name.
    fn show(&mut self, table: Rc<Table>) -> Result<(), MetadataError> {
        self.tables.insert(table.schema.id, table.clone());
        let (keyspace, name) = (table.schema.keyspace.clone(), table.schema.name.clone());
        self.edit(&keyspace, |keyspace| {
            keyspace.tables.insert(name, table);
        })
    }

    fn forget(&mut self, table: &Table) {
        if let Some(before) = self.tables.remove(table.schema.id) {
            self.weigh(&before, u32::wrapping_sub);
        }
    }

    /// Adds the tablets of a table to the load, or subtracts them.
    fn weigh(&mut self, table: &Table, change: fn(u32, u32) -> u32) {
        let load = Rc::make_mut(&mut self.load);
        for replica in (0..table.tablets.count()).flat_map(|tablet| table.tablets.holders(tablet)) {
            let count = load.entry(replica).or_default();
            *count = change(*count, 1);
        }
    }

    /// Parses the CQL text of a type, with the user types of a keyspace. A type beyond the limits,
    /// declared before there were any, is truncated to them. It must not prevent a start, and its
    /// bytes stay readable as blobs.
    pub fn parse_type(&self, keyspace: &str, text: &str) -> Result<CqlType, MetadataError> {
        self.parse_stored(keyspace, text, &mut Room::of_column())
    }

    fn parse_stored(&self, keyspace: &str, text: &str, room: &mut Room) -> Result<CqlType, MetadataError> {
        let resolve = |own: Option<&str>, name: &str| self.keyspace(own.unwrap_or(keyspace))?.types.get(name).cloned();
        let parsed = types::parse::parse_stored(text, &resolve, room);
        parsed.map_err(|error| MetadataError::Broken(format!("type {text}: {error}")))
    }

    fn resolve_type(&self, definition: &TypeDefinition) -> Result<UserType, MetadataError> {
        let mut room = Room::of_user_type();
        let fields = definition
            .fields
            .iter()
            .map(|(name, ty)| Ok((name.clone(), self.parse_stored(&definition.keyspace, ty, &mut room)?)))
            .collect::<Result<_, MetadataError>>()?;
        if room.is_cut() {
            let (keyspace, name) = (&definition.keyspace, &definition.name);
            tracing::warn!(
                keyspace,
                user_type = name,
                "the type exceeds the limits on types: fields beyond them are read as blobs"
            );
        }
        Ok(UserType { keyspace: definition.keyspace.clone(), name: definition.name.clone(), fields, frozen: false })
    }

    /// Builds the schema of a definition, with its types resolved in this metadata.
    pub fn resolve_table(&self, definition: &TableDefinition) -> Result<TableSchema, MetadataError> {
        let of_kind = |kind: ColumnKind| {
            definition
                .columns
                .iter()
                .filter(move |column| column.kind == kind)
                .map(|column| {
                    Ok(Column {
                        id: column.id,
                        name: column.name.clone(),
                        kind,
                        position: 0,
                        ty: self.parse_type(&definition.keyspace, &column.ty)?,
                        descending: column.descending,
                    })
                })
                .collect::<Result<Vec<_>, MetadataError>>()
        };
        let dropped = definition
            .dropped
            .iter()
            .map(|dropped| {
                // A dropped column's user type may be dropped too. The column's cells are dead, so
                // their type does not matter.
                let ty = self.parse_type(&definition.keyspace, &dropped.ty).unwrap_or(CqlType::Blob);
                DroppedColumn {
                    id: dropped.id,
                    name: dropped.name.clone(),
                    kind: dropped.kind,
                    ty,
                    drop_time: dropped.drop_time,
                }
            })
            .collect();
        Ok(TableSchema::new(
            definition.id,
            definition.version,
            definition.keyspace.clone(),
            definition.name.clone(),
            of_kind(ColumnKind::PartitionKey)?,
            of_kind(ColumnKind::Clustering)?,
            of_kind(ColumnKind::Static)?,
            of_kind(ColumnKind::Regular)?,
            dropped,
            definition.options.clone(),
        ))
    }
}

/// Decodes the stored form of a transition.
fn transition_of(definition: &TransitionDefinition) -> Result<Transition, MetadataError> {
    let unknown = |what: &str, name: &str| MetadataError::Broken(format!("unknown {what} of a tablet's move: {name}"));
    Ok(Transition {
        kind: TransitionKind::from_name(&definition.kind).ok_or_else(|| unknown("kind", &definition.kind))?,
        stage: Stage::from_name(&definition.stage).ok_or_else(|| unknown("stage", &definition.stage))?,
        new_replicas: Replicas::from_slice(&definition.new_replicas),
        session: definition.session,
    })
}

/// The types of a keyspace, each after the types that it uses.
pub fn types_in_order(keyspace: &Keyspace) -> Vec<Arc<UserType>> {
    fn visit<'k>(
        keyspace: &'k Keyspace,
        user_type: &'k Arc<UserType>,
        seen: &mut BTreeSet<&'k str>,
        out: &mut Vec<Arc<UserType>>,
    ) {
        if !seen.insert(&user_type.name) {
            return;
        }
        // Nested types are looked up in the keyspace, instead of walking into the type.
        for (_, ty) in &user_type.fields {
            ty.each_user_type(&mut |used| {
                if let Some(used) = keyspace.types.get(&used.name) {
                    visit(keyspace, used, seen, out);
                }
            });
        }
        out.push(user_type.clone());
    }
    let (mut seen, mut out) = (BTreeSet::new(), Vec::with_capacity(keyspace.types.len()));
    keyspace.types.values().for_each(|user_type| visit(keyspace, user_type, &mut seen, &mut out));
    out
}

#[cfg(test)]
mod tests;
