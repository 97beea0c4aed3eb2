"""What the tests share: references, tolerances, views, guarded memory, a hand-made DLPack producer."""
