"""The attacks, one module per subject. Each module has ATTACKS: name -> function(place, check)."""
