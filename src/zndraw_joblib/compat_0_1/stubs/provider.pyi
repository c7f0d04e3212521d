from zndraw_joblib.contract.extensions import Provider as Provider
