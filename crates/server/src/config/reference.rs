//! Generates the configuration reference from the table of keys. A test compares it with
//! `docs/configuration.md`.

use super::keys::{KEYS, Key};
use super::setting::range_text;
use super::{legacy, live};
use std::fmt::Write;

/// The text of `docs/configuration.md`.
pub fn markdown() -> String {
    let mut out = String::from(
        "# Configuration\n\n\
         Generated from the table of keys in `crates/server/src/config/keys.rs`. To update it:\n\
         `MESSINA_BLESS=1 cargo test -p messina-server reference`.\n\n\
         A node reads `messina.yaml` (`messina serve --config messina.yaml`). The file has the keys of\n\
         scylla.yaml. Every key is also an option on the command line, with dashes instead of underscores\n\
         (`--native-transport-port 9042`). The command line overrides the file. Keys that are in neither\n\
         have the defaults below.\n\n\
         A wrong value is an error. An unknown key is a warning that names the closest known key. An\n\
         unknown key that looks like one of the section Security is an error, and so is an unknown option\n\
         in `client_encryption_options` or `server_encryption_options`.\n\n\
         Units of durations are `ns`, `us`, `ms`, `s`, `m`, `h`, `d`. Units of sizes are `K`, `M`, `G`, `T`\n\
         (powers of 1024, also written as `KiB` or `KB`). A number without a unit has the unit of the key's\n\
         name. Both of Cassandra's spellings are accepted: `read_request_timeout: 5s` and\n\
         `read_request_timeout_in_ms: 5000`.\n\n\
         The column `live` says whether a setting can be changed while the node runs. In a file or in CQL,\n\
         use any name of the setting:\n\n\
         \x20   UPDATE system.config SET value = '7s' WHERE name = 'read_request_timeout';\n\n\
         Such a change holds for this node until it restarts or reads its file again. SIGHUP makes a node\n\
         read its file again, and applies the live settings. All other changes need a restart.\n",
    );
    let mut section = "";
    for key in KEYS {
        if key.section != section {
            section = key.section;
            let _ = write!(out, "\n## {section}\n\n| key | default | live | effect |\n|---|---|---|---|\n");
        }
        row(&mut out, key);
    }
    out.push_str("\n## Keys without effect\n\nThese keys of scylla.yaml and cassandra.yaml are accepted and have no effect. The node logs a warning\nat start.\n");
    for (reason, names) in legacy::WITHOUT_EFFECT {
        let mut names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        names.sort();
        let _ = write!(out, "\n- {reason}: {}\n", names.join(", "));
    }
    out
}

fn row(out: &mut String, key: &Key) {
    let _ = write!(out, "| `{}`", key.name);
    for alias in key.aliases {
        let _ = write!(out, "<br>`{alias}`");
    }
    match (key.default)().as_str() {
        "" => out.push_str(" | "),
        default => {
            let _ = write!(out, " | `{default}`");
        }
    }
    let range = key.range.map_or_else(String::new, |range| format!(" Range: {}.", range_text(range)));
    let live = if live::is_live(key) { "yes" } else { "no" };
    let _ = writeln!(out, " | {live} | {}{range} |", key.help());
}

#[cfg(test)]
mod tests {
    /// `MESSINA_BLESS=1 cargo test -p messina-server reference` writes the page.
    #[test]
    fn the_page_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let wanted = super::markdown();
        if std::env::var_os("MESSINA_BLESS").is_some() {
            std::fs::write(path, &wanted).expect("written");
        }
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            found == wanted,
            "docs/configuration.md is outdated: MESSINA_BLESS=1 cargo test -p messina-server reference"
        );
    }
}
