//! Blocks of a cluster whose tiles are neighbours: TileCluster of kernels/common/wgmma_shape.cuh.

use std::fmt;

/// Those in a row share their rows of a, those in a column their columns of b: each loads an equal part for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileCluster {
    pub rows: u32,
    pub columns: u32,
}

impl TileCluster {
    pub const ALONE: TileCluster = TileCluster { rows: 1, columns: 1 };
    pub const PAIR: TileCluster = TileCluster { rows: 2, columns: 1 };
    /// All that are worth it: of eight blocks none is (docs/measurements/matmul_wgmma.md).
    #[rustfmt::skip]
    pub const ALL: [TileCluster; 5] = [
        TileCluster::ALONE,
        TileCluster::PAIR,
        TileCluster { rows: 2, columns: 2 },
        TileCluster { rows: 4, columns: 1 },
        TileCluster { rows: 1, columns: 4 },
    ];

    /// As it is printed.
    pub fn parse(name: &str) -> Option<TileCluster> {
        TileCluster::ALL.into_iter().find(|cluster| cluster.to_string() == name)
    }

    /// As the kernel reads it, of results of so many tiles.
    pub fn packed(self, (tiles_m, tiles_n): (u32, u32)) -> u32 {
        let beyond = |tiles: u32, side: u32| tiles.next_multiple_of(side) - tiles;
        u32::from_le_bytes(
            [self.rows, self.columns, beyond(tiles_m, self.rows), beyond(tiles_n, self.columns)]
                .map(|blocks| blocks as u8),
        )
    }

    pub fn unpacked(packed: u32) -> TileCluster {
        let [rows, columns, ..] = packed.to_le_bytes().map(u32::from);
        TileCluster { rows, columns }
    }

    pub fn blocks(self) -> u32 {
        self.rows * self.columns
    }

    pub fn is_alone(self) -> bool {
        self == TileCluster::ALONE
    }
}

impl fmt::Display for TileCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.rows, self.columns)
    }
}
