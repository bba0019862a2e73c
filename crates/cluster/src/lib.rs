//! Who owns what, and asking the owners.
