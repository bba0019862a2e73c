//! DESCRIBE: the schema as statements that create it again, and lists of schema objects.
//!
//! Results have the columns that cqlsh of Cassandra 4 expects. The statements create the same
//! schema when they are executed. Names are quoted where necessary, even in name columns. System
//! keyspaces are described like others.

mod options;
mod snapshot;
pub(crate) mod statement;
#[cfg(test)]
mod tests;

pub use snapshot::snapshot_schema;

use crate::api::{ColumnSpec, ResultKind, ResultMetadata, Rows, StatementResult};
use crate::error::Error;
use crate::schema::names;
use crate::syntax::ast::{Describe, DescribeTarget, Name, QualifiedName};
use crate::syntax::quote_identifier;
use crate::system::SystemTables;
use cluster::metadata::{Keyspace, NodeInfo, types_in_order};
use cluster::observe::{SNITCH, members::view};
use cluster::{Metadata, MetadataService};
use internode::Liveness;
use model::CqlType;
use model::types::Value;
use std::rc::Rc;

/// Answers a DESCRIBE in a single page. `current`: the keyspace of the session in which it was
/// planned.
pub fn describe(
    service: &MetadataService,
    system: &SystemTables,
    current: Option<&str>,
    statement: &Describe,
) -> Result<StatementResult, Error> {
    let catalog = Catalog { user: service.current(), system: system.keyspaces() };
    let rows = rows(&catalog, service.info(), current, statement)?;
    Ok(StatementResult::new(ResultKind::Rows(encode(result_metadata(statement, current), &rows))))
}

/// The result columns of a DESCRIBE in a session with this keyspace.
pub fn result_metadata(statement: &Describe, current: Option<&str>) -> Rc<ResultMetadata> {
    let text = |name: &str| (name.to_owned(), CqlType::Text);
    let columns = match statement.target {
        DescribeTarget::Cluster => {
            let mut columns = vec![text("cluster"), text("partitioner"), text("snitch")];
            if shows_ownership(current) {
                columns.push(("range_ownership".to_owned(), ownership_type()));
            }
            columns
        }
        DescribeTarget::Keyspaces
        | DescribeTarget::Tables
        | DescribeTarget::Types
        | DescribeTarget::Functions
        | DescribeTarget::Aggregates => vec![text("keyspace_name"), text("type"), text("name")],
        _ => vec![text("keyspace_name"), text("type"), text("name"), text("create_statement")],
    };
    let (keyspace, table): (Rc<str>, Rc<str>) = ("system".into(), "describe".into());
    let column = |(name, ty)| ColumnSpec { keyspace: keyspace.clone(), table: table.clone(), name, ty };
    Rc::new(ResultMetadata { columns: columns.into_iter().map(column).collect(), ..ResultMetadata::default() })
}

fn ownership_type() -> CqlType {
    CqlType::map(CqlType::Text, CqlType::list(CqlType::Text)).freeze()
}

/// Whether the ownership of ranges is shown: only in a session with a replicated keyspace.
fn shows_ownership(current: Option<&str>) -> bool {
    current.is_some_and(|keyspace| !names::is_system(keyspace))
}

/// Everything that can be described: the keyspaces of users and of the system.
struct Catalog {
    user: Rc<Metadata>,
    system: Rc<Metadata>,
}

impl Catalog {
    fn keyspace(&self, name: &str) -> Result<&Rc<Keyspace>, Error> {
        let found = self.user.keyspace(name).or_else(|| self.system.keyspace(name));
        found.ok_or_else(|| Error::invalid(format!("'{name}' not found in keyspaces")))
    }

    /// All keyspaces, ordered by name.
    fn keyspaces(&self) -> Vec<&Rc<Keyspace>> {
        let mut all: Vec<_> = self.user.keyspaces.values().chain(self.system.keyspaces.values()).collect();
        all.sort_by(|a, b| a.definition.name.cmp(&b.definition.name));
        all
    }
}

type Row = Vec<Value>;

/// The row of a schema object: its keyspace, kind and name, and the statement that creates it.
fn row(keyspace: &str, kind: &str, name: &str, statement: Option<String>) -> Row {
    let quoted = |name: &str| Value::Text(quote_identifier(name).into_owned());
    let mut row = vec![quoted(keyspace), Value::Text(kind.to_owned()), quoted(name)];
    row.extend(statement.map(Value::Text));
    row
}

fn rows(catalog: &Catalog, node: &NodeInfo, current: Option<&str>, statement: &Describe) -> Result<Vec<Row>, Error> {
    let internals = statement.with_internals;
    let home = |name: &QualifiedName| -> Result<&Rc<Keyspace>, Error> {
        let written = name.keyspace.as_ref().map(Name::as_str).or(current);
        catalog.keyspace(written.ok_or_else(no_keyspace)?)
    };
    let missing = |what: &str, name: &QualifiedName| -> Result<Vec<Row>, Error> {
        let keyspace = &home(name)?.definition.name;
        Err(Error::invalid(format!("{what} '{}' not found in keyspace '{keyspace}'", name.name)))
    };
    match &statement.target {
        DescribeTarget::Cluster => Ok(vec![cluster_row(&catalog.user, node, current)]),
        DescribeTarget::Schema { full } => {
            let all = catalog
                .keyspaces()
                .into_iter()
                .filter(|keyspace| *full || !names::is_system(&keyspace.definition.name));
            Ok(all.flat_map(|keyspace| whole_keyspace(keyspace, internals)).collect())
        }
        DescribeTarget::Keyspaces => {
            let all = catalog.keyspaces().into_iter();
            Ok(all
                .map(|keyspace| row(&keyspace.definition.name, "keyspace", &keyspace.definition.name, None))
                .collect())
        }
        DescribeTarget::Keyspace { only, name } => {
            let name = name.as_ref().map(Name::as_str).or(current).ok_or_else(no_keyspace)?;
            let keyspace = catalog.keyspace(name)?;
            Ok(if *only { vec![keyspace_row(keyspace)] } else { whole_keyspace(keyspace, internals) })
        }
        DescribeTarget::Tables => {
            let list = |keyspace: &Rc<Keyspace>| -> Vec<Row> {
                keyspace.tables.keys().map(|name| row(&keyspace.definition.name, "table", name, None)).collect()
            };
            in_scope(catalog, current, list)
        }
        DescribeTarget::Types => {
            let list = |keyspace: &Rc<Keyspace>| -> Vec<Row> {
                let types = types_in_order(keyspace);
                types.iter().map(|user_type| row(&keyspace.definition.name, "type", &user_type.name, None)).collect()
            };
            in_scope(catalog, current, list)
        }
        DescribeTarget::Functions | DescribeTarget::Aggregates => in_scope(catalog, current, |_| Vec::new()),
        DescribeTarget::Table(name) => {
            table_rows(home(name)?, name.name.as_str(), internals).map_or_else(|| missing("Table", name), Ok)
        }
        DescribeTarget::Type(name) => {
            type_rows(home(name)?, name.name.as_str()).map_or_else(|| missing("Type", name), Ok)
        }
        DescribeTarget::Function(name) => missing("Function", name),
        DescribeTarget::Aggregate(name) => missing("Aggregate", name),
        DescribeTarget::View(name) => missing("Materialized view", name),
        DescribeTarget::Index(name) => Err(Error::invalid(format!(
            "Table for existing index '{}' not found in '{}'",
            name.name,
            home(name)?.definition.name
        ))),
        DescribeTarget::Any(name) => anything(catalog, current, name, internals),
    }
}

/// Describes a keyspace of this name, else a table or type.
fn anything(
    catalog: &Catalog,
    current: Option<&str>,
    name: &QualifiedName,
    internals: bool,
) -> Result<Vec<Row>, Error> {
    let bare = name.name.as_str();
    if name.keyspace.is_none()
        && let Ok(keyspace) = catalog.keyspace(bare)
    {
        return Ok(whole_keyspace(keyspace, internals));
    }
    let Some(home) = name.keyspace.as_ref().map(Name::as_str).or(current) else {
        return Err(Error::invalid(format!("'{bare}' not found in keyspaces")));
    };
    let keyspace = catalog.keyspace(home)?;
    let found = table_rows(keyspace, bare, internals).or_else(|| type_rows(keyspace, bare));
    found.ok_or_else(|| Error::invalid(format!("'{bare}' not found in keyspace '{home}'")))
}

fn no_keyspace() -> Error {
    Error::invalid("No keyspace specified and no current keyspace")
}

/// The list for the current keyspace, or for all keyspaces.
fn in_scope(
    catalog: &Catalog,
    current: Option<&str>,
    list: impl Fn(&Rc<Keyspace>) -> Vec<Row>,
) -> Result<Vec<Row>, Error> {
    Ok(match current {
        Some(current) => list(catalog.keyspace(current)?),
        None => catalog.keyspaces().into_iter().flat_map(list).collect(),
    })
}

fn cluster_row(metadata: &Metadata, node: &NodeInfo, current: Option<&str>) -> Row {
    let text = |text: &str| Value::Text(text.to_owned());
    let mut row = vec![text(&node.cluster_name), text(crate::system::PARTITIONER), text(SNITCH)];
    if shows_ownership(current) {
        // The ring that clients see: the full members of the cluster.
        let mut ring = Vec::new();
        for seen in view(metadata, node, &Liveness::default(), None) {
            let owner = Value::List(vec![Value::Text(seen.node.broadcast_address.to_string())]);
            let tokens = seen.rank.into_iter().flat_map(|(place, count)| crate::system::tokens_of(place, count));
            ring.extend(tokens.map(|token| (Value::Text(token.to_string()), owner.clone())));
        }
        row.push(Value::Map(ring));
    }
    row
}

fn keyspace_row(keyspace: &Keyspace) -> Row {
    let name = &keyspace.definition.name;
    row(name, "keyspace", name, Some(statement::create_keyspace(&keyspace.definition)))
}

/// A keyspace, its types (each after the types that it uses), and its tables.
fn whole_keyspace(keyspace: &Rc<Keyspace>, internals: bool) -> Vec<Row> {
    let mut rows = vec![keyspace_row(keyspace)];
    for user_type in types_in_order(keyspace) {
        rows.extend(type_rows(keyspace, &user_type.name).into_iter().flatten());
    }
    for name in keyspace.tables.keys() {
        rows.extend(table_rows(keyspace, name, internals).into_iter().flatten());
    }
    rows
}

fn table_rows(keyspace: &Keyspace, name: &str, internals: bool) -> Option<Vec<Row>> {
    let table = keyspace.tables.get(name)?;
    Some(vec![row(&keyspace.definition.name, "table", name, Some(statement::create_table(table, internals)))])
}

fn type_rows(keyspace: &Keyspace, name: &str) -> Option<Vec<Row>> {
    let user_type = keyspace.types.get(name)?;
    Some(vec![row(&keyspace.definition.name, "type", name, Some(statement::create_type(user_type)))])
}

/// Encodes the rows for the protocol.
fn encode(metadata: Rc<ResultMetadata>, rows: &[Row]) -> Rows {
    let mut body = Vec::new();
    for row in rows {
        assert_eq!(row.len(), metadata.columns.len(), "a description has the columns that were announced");
        for (column, value) in metadata.columns.iter().zip(row) {
            let bytes =
                value.encode(&column.ty).expect("a description's values are of their types").unwrap_or_default();
            body.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
            body.extend_from_slice(&bytes);
        }
    }
    Rows { metadata, paging_state: None, count: rows.len() as u32, body: body.into() }
}
