"""Uses of packages that compute."""

import io
import os
import tempfile


def numpy():
    import numpy as np

    a = np.random.default_rng(1).random((60, 60))
    return round(float(np.linalg.eigvals(a).real.sum()), 6), float(np.fft.fft(a[0]).real[0].round(6))


def scipy():
    from scipy import optimize, sparse, stats

    found = optimize.minimize(lambda x: (x[0] - 3) ** 2 + x[1] ** 2, [0.0, 1.0]).x.round(3).tolist()
    return found, sparse.eye(9).tocsr().sum(), round(float(stats.norm.cdf(1.0)), 9)


def pandas():
    import pandas as pd

    table = pd.DataFrame({"a": [1, 2, 3] * 30, "b": range(90), "c": ["x", "y", "z"] * 30})
    text = table.to_csv()
    again = pd.read_csv(io.StringIO(text), index_col=0)
    return again.groupby("c").b.sum().to_dict(), again.merge(table, on="b").shape


def scikit_learn():
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier

    x, y = make_classification(200, random_state=1)
    return round(float(RandomForestClassifier(20, random_state=1).fit(x, y).score(x, y)), 6)


def statsmodels():
    import numpy as np
    import statsmodels.api as sm

    x = np.linspace(0, 1, 50)
    return sm.OLS(3 * x + 1, sm.add_constant(x)).fit().params.round(6).tolist()


def scikit_image():
    import numpy as np
    from skimage import filters, measure

    image = np.zeros((40, 40))
    image[5:15, 5:15] = image[25:30, 20:35] = 1
    return int(measure.label(image > 0).max()), round(float(filters.gaussian(image, 2).max()), 6)


def pywavelets():
    import pywt

    return [round(float(x), 6) for x in pywt.dwt([1.0, 2.0, 5.0, 3.0], "db2")[0]]


def bottleneck():
    import bottleneck as bn
    import numpy as np

    return bn.move_mean(np.arange(9.0), 3)[2:].tolist()


def numexpr():
    import numexpr as ne
    import numpy as np

    a = np.arange(100_000.0)
    return float(ne.evaluate("sum(2 * a + sin(a) ** 2 + cos(a) ** 2)", {"a": a}).round(3))


def astropy():
    from astropy import units
    from astropy.coordinates import SkyCoord
    from astropy.time import Time

    there = SkyCoord(10 * units.deg, 20 * units.deg).galactic
    return round(there.l.deg, 6), Time("2020-01-01").jd, (3 * units.km).to(units.m).value


def sympy():
    import sympy as sp

    x = sp.Symbol("x")
    return str(sp.integrate(sp.exp(-x) * sp.sin(x), x)), str(sp.factor(x**4 - 1))


def networkx():
    import networkx as nx

    graph = nx.karate_club_graph()
    return nx.shortest_path_length(graph, 0, 33), round(sum(nx.pagerank(graph).values()), 6)


def lightgbm():
    import lightgbm as lgb
    import numpy as np

    x = np.random.default_rng(1).random((200, 5))
    model = lgb.LGBMRegressor(n_estimators=10, num_threads=1, verbose=-1).fit(x, x[:, 0])
    return round(float(model.predict(x).sum()), 4)


def shapely():
    from shapely.geometry import Point
    from shapely.ops import unary_union

    return round(unary_union([Point(n, 0).buffer(1) for n in range(5)]).area, 6)


def pyproj():
    from pyproj import Transformer

    return [round(x, 3) for x in Transformer.from_crs(4326, 3857, always_xy=True).transform(13.0, 52.0)]


def rasterio():
    import numpy as np
    from rasterio.io import MemoryFile

    with MemoryFile() as memory:
        with memory.open(driver="GTiff", width=8, height=8, count=1, dtype="uint8") as out:
            out.write(np.arange(64, dtype="uint8").reshape(1, 8, 8))
        with memory.open() as back:
            return int(back.read(1).sum())


def contourpy():
    import contourpy
    import numpy as np

    x = np.linspace(-1, 1, 20)
    return len(contourpy.contour_generator(z=np.add.outer(x**2, x**2)).lines(0.5)[0])


def kiwisolver():
    import kiwisolver

    x, solver = kiwisolver.Variable("x"), kiwisolver.Solver()
    solver.addConstraint(2 * x == 6)
    solver.updateVariables()
    return x.value()


def xgboost():
    import numpy as np
    import xgboost as xgb

    x = np.random.default_rng(1).random((200, 4))
    trained = xgb.train({"max_depth": 3, "nthread": 1}, xgb.DMatrix(x, x[:, 0] > 0.5), 5)
    return round(float(trained.predict(xgb.DMatrix(x)).sum()), 3)


def onnxruntime():
    import numpy as np
    import onnxruntime as ort

    def field(number, data):
        if isinstance(data, int):
            return bytes([number << 3, data])
        data = data.encode() if isinstance(data, str) else data
        return bytes([number << 3 | 2, len(data)]) + data

    def value(name):  # a vector of 3 float32
        shape = field(1, field(1, 3))
        return field(1, name) + field(2, field(1, field(1, 1) + field(2, shape)))

    node = field(1, "x") + field(1, "x") + field(2, "y") + field(4, "Mul")
    graph = field(1, node) + field(2, "g") + field(11, value("x")) + field(12, value("y"))
    model = field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 13))
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.array([1, 2, 3], "float32")})[0].tolist()


def faiss_cpu():
    import faiss
    import numpy as np

    points = np.random.default_rng(1).random((500, 8)).astype("float32")
    index = faiss.IndexFlatL2(8)
    index.add(points)
    return index.search(points[:3], 4)[1].tolist()


def hdbscan():
    import hdbscan as hd
    import numpy as np

    points = np.random.default_rng(1).normal(size=(60, 2)) + np.repeat([[0, 0], [20, 20]], 30, 0)
    return len(set(hd.HDBSCAN(core_dist_n_jobs=1).fit_predict(points)) - {-1})


def spacy():
    import spacy as sp

    return [(token.text, token.is_alpha, token.idx) for token in sp.blank("en")("Don't go to U.S. at 5pm!")]


def igraph():
    import igraph as ig

    graph = ig.Graph.Ring(9)
    return graph.diameter(), [round(x, 6) for x in graph.betweenness()]


def python_flint():
    import flint

    return str(flint.fmpz_mat([[1, 2], [3, 4]]).det()), str(flint.fmpz(2**64 + 13).factor())


def h3():
    import h3 as hexagons

    cell = hexagons.latlng_to_cell(52.5, 13.4, 7)
    return cell, len(hexagons.grid_disk(cell, 2))


def biopython():
    from Bio import Align
    from Bio.Seq import Seq

    return Align.PairwiseAligner().score("GATTACA", "GCATGCA"), str(Seq("ATGGCC").translate())


def rdkit():
    from rdkit import Chem
    from rdkit.Chem import Descriptors

    molecule = Chem.MolFromSmiles("CC(=O)Oc1ccccc1C(=O)O")
    return Chem.MolToSmiles(molecule), round(Descriptors.MolWt(molecule), 3)


def pyerfa():
    import erfa

    return [round(float(x), 9) for x in erfa.dtf2d("UTC", 2026, 1, 1, 12, 0, 0.0)]


def healpy():
    import healpy as hp
    import numpy as np

    return int(hp.ang2pix(16, 1.0, 2.0)), round(float(hp.anafast(np.arange(hp.nside2npix(8)) * 1.0)[1]), 2)


def ducc0():
    import ducc0 as ducc
    import numpy as np

    return ducc.fft.c2c(np.arange(8) * (1 + 0j)).round(6).tolist()


def finufft():
    import finufft as fi
    import numpy as np

    x = np.linspace(-3, 3, 20)
    return fi.nufft1d1(x, np.ones(20, complex), 6, nthreads=1).round(5).tolist()


def pyfftw():
    import numpy as np
    from pyfftw.interfaces import numpy_fft

    return numpy_fft.fft(np.arange(8.0)).round(6).tolist()


def scs():
    import numpy as np
    import scs as solver
    from scipy import sparse

    data = {"A": sparse.csc_matrix([[-1.0], [1.0]]), "b": np.array([-1.0, 2.0]), "c": np.array([1.0])}
    return round(float(solver.SCS(data, {"l": 2}, verbose=False).solve()["x"][0]), 3)


def osqp():
    import numpy as np
    import osqp as solver
    from scipy import sparse

    problem = solver.OSQP()
    terms = {"P": sparse.csc_matrix([[4.0, 1], [1, 2]]), "q": np.array([1.0, 1]), "A": sparse.csc_matrix([[1.0, 1]])}
    problem.setup(**terms, l=np.array([1.0]), u=np.array([1.0]), verbose=False)
    return problem.solve().x.round(2).tolist()


def clarabel():
    import clarabel as solver
    import numpy as np
    from scipy import sparse

    settings = solver.DefaultSettings()
    settings.verbose = False
    cones = [solver.NonnegativeConeT(1)]
    terms = sparse.csc_matrix([[2.0]]), np.array([1.0]), sparse.csc_matrix([[-1.0]]), np.array([-1.0])
    return round(solver.DefaultSolver(*terms, cones, settings).solve().x[0], 5)


def highspy():
    import highspy as hs

    model = hs.Highs()
    x, y = model.addVariable(lb=0, ub=4), model.addVariable(lb=1, ub=7)
    model.addConstr(x + 2 * y <= 10)
    model.maximize(x + y)
    return model.getObjectiveValue()


def cvxpy():
    import cvxpy as cp

    x = cp.Variable(2)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - [1.0, 2.0])), [cp.sum(x) == 1, x >= 0])
    return round(float(problem.solve(solver=cp.CLARABEL)), 4)


def cartopy():
    import cartopy.crs as ccrs

    return [round(x, 3) for x in ccrs.Mercator().transform_point(10, 50, ccrs.PlateCarree())]


def pyogrio():
    import numpy as np
    import pyogrio
    import shapely

    points = shapely.to_wkb(shapely.points(np.arange(6.0).reshape(3, 2)))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.gpkg")
        numbers = [np.array([1, 2, 3])]
        pyogrio.raw.write(path, points, numbers, ["n"], geometry_type="Point", crs="EPSG:4326", driver="GPKG")
        found = pyogrio.raw.read(path)
    return found[3][0].tolist(), len(found[2])
