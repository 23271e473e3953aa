#include "tests/optim/every_optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/optim/adagrad.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/nadam.h"
#include "lockstep/optim/rmsprop.h"
#include "lockstep/optim/sgd.h"

namespace lockstep::optim {

namespace {

using Formula = std::function<void(Scalar&, double g, int t)>;

template <typename T, typename Options> auto make(const Options& given) {
  return [given](std::vector<NamedTensor> parameters, LossScaler* scaler) -> std::unique_ptr<Optimizer> {
    Options options = given;
    options.loss_scaler = scaler;
    return std::make_unique<T>(std::move(parameters), options);
  };
}

Formula sgd(double lr, double momentum, bool nesterov, double decay) {
  return [=](Scalar& s, double g, int t) {
    g += decay * s.w;
    s.first = t == 1 ? g : momentum * s.first + g;  // PyTorch's buffer begins as the first gradient
    s.w -= lr * (momentum == 0 ? g : nesterov ? g + momentum * s.first : s.first);
  };
}

Formula adam(double lr, double beta1, double beta2, double eps, double decay, bool decoupled, bool amsgrad = false) {
  return [=](Scalar& s, double g, int t) {
    if (decoupled)
      s.w *= 1 - lr * decay;
    else
      g += decay * s.w;
    s.first = beta1 * s.first + (1 - beta1) * g;
    s.second = beta2 * s.second + (1 - beta2) * g * g;
    s.third = std::max(s.third, s.second);
    const double first = s.first / (1 - std::pow(beta1, t)),
                 second = (amsgrad ? s.third : s.second) / (1 - std::pow(beta2, t));
    s.w -= lr * first / (std::sqrt(second) + eps);
  };
}

double mu_product(double beta1, double psi, int last) {
  double product = 1;
  for (int i = 1; i <= last; ++i) product *= beta1 * (1 - 0.5 * std::pow(0.96, i * psi));
  return product;
}

Formula torch_nadam(double lr, double beta1, double beta2, double eps, double decay, double psi, bool decoupled) {
  return [=](Scalar& s, double g, int t) {
    if (decoupled)
      s.w *= 1 - lr * decay;
    else
      g += decay * s.w;
    const double mu = beta1 * (1 - 0.5 * std::pow(0.96, t * psi)),
                 next = beta1 * (1 - 0.5 * std::pow(0.96, (t + 1) * psi));
    s.first = beta1 * s.first + (1 - beta1) * g;
    s.second = beta2 * s.second + (1 - beta2) * g * g;
    const double average =
        next * s.first / (1 - mu_product(beta1, psi, t + 1)) + (1 - mu) * g / (1 - mu_product(beta1, psi, t));
    s.w -= lr * average / (std::sqrt(s.second / (1 - std::pow(beta2, t))) + eps);
  };
}

// keras.optimizers.Nadam: u_t = beta_1 * (1 - 0.5 * 0.96^t).
Formula keras_nadam(double lr) {
  return [=](Scalar& s, double g, int t) {
    const double beta1 = 0.9, beta2 = 0.999, eps = 1e-7;
    const double u = beta1 * (1 - 0.5 * std::pow(0.96, t)), u_next = beta1 * (1 - 0.5 * std::pow(0.96, t + 1));
    if (t == 1) s.third = 1;
    s.third *= u;
    s.first += (g - s.first) * (1 - beta1);
    s.second += (g * g - s.second) * (1 - beta2);
    const double m_hat = u_next * s.first / (1 - s.third * u_next) + (1 - u) * g / (1 - s.third);
    const double v_hat = s.second / (1 - std::pow(beta2, t));
    s.w -= m_hat * lr / (std::sqrt(v_hat) + eps);
  };
}

Formula rmsprop(double lr, double alpha, double eps, double momentum, bool centered, double decay) {
  return [=](Scalar& s, double g, int) {
    g += decay * s.w;
    s.first = alpha * s.first + (1 - alpha) * g * g;
    s.third = alpha * s.third + (1 - alpha) * g;
    const double change = g / (std::sqrt(centered ? s.first - s.third * s.third : s.first) + eps);
    s.second = momentum * s.second + change;
    s.w -= lr * (momentum > 0 ? s.second : change);
  };
}

Formula adagrad(double lr, double lr_decay, double initial, double eps, double decay) {
  return [=](Scalar& s, double g, int t) {
    if (t == 1) s.first = initial;
    g += decay * s.w;
    s.first += g * g;
    s.w -= lr / (1 + (t - 1) * lr_decay) * g / (std::sqrt(s.first) + eps);
  };
}

}  // namespace

// The last line of a case is printed by recorded_optimizers.py, with PyTorch 2.15.0 and Keras 3.15.1.
const std::vector<OptimizerCase>& optimizer_cases() {
  static const std::vector<OptimizerCase> all = {
      {"sgd",
       "torch.optim.SGD(w, lr=1e-2)",
       make<SGD>(SGDOptions{.lr = 1e-2F}),
       sgd(1e-2, 0, false, 0),
       {},
       {1.8971875, -2.2657421874999968, 2.4981396484374998, -2.7502191162109364, 2.8946874999999994,
        -3.2660546874999969, 3.498100585937499, -3.750204467773437}},
      {"sgd_momentum_decay",
       "torch.optim.SGD(w, lr=1e-3, momentum=0.9, weight_decay=0.01)",
       make<SGD>(SGDOptions{.lr = 1e-3F, .momentum = 0.9F, .weight_decay = 0.01F}),
       sgd(1e-3, 0.9, false, 0.01),
       {"w.momentum"},
       {1.8875443591411676, -2.2434311778061629, 2.4755799338720301, -2.7252721499127328, 2.8787740903680321,
        -3.234785134996836, 3.4664836215699468, -3.7161940385797565}},
      {"sgd_nesterov",
       "torch.optim.SGD(w, lr=1e-3, momentum=0.9, nesterov=True)",
       make<SGD>(SGDOptions{.lr = 1e-3F, .momentum = 0.9F, .nesterov = true}),
       sgd(1e-3, 0.9, true, 0),
       {"w.momentum"},
       {1.9045258800879881, -2.2640695412608469, 2.4982286420295687, -2.7502058746046516, 2.904549532240003,
        -3.2644799393939543, 3.4981970355676957, -3.7501934225641937}},
      {"adam",
       "torch.optim.Adam(w)",
       make<Adam>(AdamOptions{}),
       adam(1e-3, 0.9, 0.999, 1e-8, 0, false),
       {"w.exp_avg", "w.exp_avg_sq", "group0.clock"},
       {1.9682340814612933, -2.2894873973357419, 2.4632551726957765, -2.7885047878551039, 2.9702648917402796,
        -3.2915623584320457, 3.4602809941817472, -3.7860832217061939}},
      {"adam_l2",
       "torch.optim.Adam(w, lr=1e-2, betas=(0.8, 0.999), weight_decay=0.1)",
       make<Adam>(AdamOptions{.lr = 1e-2F, .beta1 = 0.8, .weight_decay = 0.1F}),
       adam(1e-2, 0.8, 0.999, 1e-8, 0.1, false),
       {"w.exp_avg", "w.exp_avg_sq", "group0.clock"},
       {1.3038546994158071, -1.3720269515366827, 1.5900842754402964, -1.8321045123734714, 2.2251910009603875,
        -2.3272214279747092, 2.5635922335632659, -2.808986458182932}},
      {"adam_amsgrad",
       "torch.optim.Adam(w, lr=1e-2, betas=(0.9, 0.9), weight_decay=0.01, amsgrad=True)",
       make<Adam>(AdamOptions{.lr = 1e-2F, .beta2 = 0.9, .weight_decay = 0.01F, .amsgrad = true}),
       adam(1e-2, 0.9, 0.9, 1e-8, 0.01, false, true),
       {"w.exp_avg", "w.exp_avg_sq", "w.max_exp_avg_sq", "group0.clock"},
       {1.6742758846848118, -2.0982301279277009, 1.6302719017207812, -1.833510311375087, 2.672427433104529,
        -2.8889882255031409, 2.5850859868998466, -2.8065746533565252}},
      {"adamw_amsgrad",
       "torch.optim.AdamW(w, lr=1e-2, betas=(0.9, 0.9), amsgrad=True)",
       make<AdamW>(AdamWOptions{.lr = 1e-2F, .beta2 = 0.9, .amsgrad = true}),
       adam(1e-2, 0.9, 0.9, 1e-8, 1e-2, true, true),
       {"w.exp_avg", "w.exp_avg_sq", "w.max_exp_avg_sq", "group0.clock"},
       {1.7026440634085966, -2.5839894617709525, 2.1505064892260908, -3.0810656586430571, 2.7115346508438809,
        -3.5906104605928002, 3.1024747724146828, -4.0403185859319279}},
      {"adamw",
       "torch.optim.AdamW(w)",
       make<AdamW>(AdamWOptions{}),
       adam(1e-3, 0.9, 0.999, 1e-8, 1e-2, true),
       {"w.exp_avg", "w.exp_avg_sq", "group0.clock"},
       {1.9662490368117118, -2.2872181440083894, 2.46077273974368, -2.7857356610569872, 2.9672783250652039,
        -3.2882922819020148, 3.456802673681715, -3.7823168001723921}},
      {"adamw_large",
       "torch.optim.AdamW(w, lr=1e-2, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.5)",
       make<AdamW>(AdamWOptions{.lr = 1e-2F, .beta2 = 0.95, .eps = 1e-4F, .weight_decay = 0.5F}),
       adam(1e-2, 0.9, 0.95, 1e-4, 0.5, true),
       {"w.exp_avg", "w.exp_avg_sq", "group0.clock"},
       {0.96131201277652401, -1.6710592944159854, 1.2261552319059954, -1.9223184518979683, 1.5773701785549268,
        -2.2905334539137829, 1.8120589530882936, -2.5107605703780753}},
      {"nadam",
       "torch.optim.NAdam(w)",
       make<Nadam>(NadamOptions{}),
       torch_nadam(2e-3, 0.9, 0.999, 1e-8, 0, 4e-3, false),
       {"w.exp_avg", "w.exp_avg_sq", "group0.clock"},
       {1.9336616129042346, -2.3270282885744904, 2.4262382174960342, -2.8204372745253483, 2.9341904692793457,
        -3.3307859782411855, 3.4264412825922497, -3.8182269931247705}},
      {"nadam_l2",
       "torch.optim.NAdam(w, lr=1e-2, weight_decay=0.1, momentum_decay=0.1)",
       make<Nadam>(NadamOptions{.lr = 1e-2F, .weight_decay = 0.1F, .momentum_decay = 0.1}),
       torch_nadam(1e-2, 0.9, 0.999, 1e-8, 0.1, 0.1, false),
       {"w.exp_avg", "w.exp_avg_sq", "group0.clock"},
       {1.319822537575019, -1.3980915808721257, 1.6182637265897972, -1.8608180047250504, 2.237247768147256,
        -2.356134973196776, 2.593598943597625, -2.8391661471071705}},
      {"nadam_decoupled",
       "torch.optim.NAdam(w, weight_decay=0.1, decoupled_weight_decay=True)",
       make<Nadam>(NadamOptions{.weight_decay = 0.1F, .decoupled_weight_decay = true}),
       torch_nadam(2e-3, 0.9, 0.999, 1e-8, 0.1, 4e-3, true),
       {"w.exp_avg", "w.exp_avg_sq", "group0.clock"},
       {1.8946726987090643, -2.2817220635599869, 2.3774215636520255, -2.7652692744155551, 2.8753669990957493,
        -3.2656225271544259, 3.3578432213021228, -3.7432892715050179}},
      {"nadam_keras",
       "keras.optimizers.Nadam()",
       make<Nadam>(NadamOptions::keras()),
       keras_nadam(1e-3),
       {"w.exp_avg", "w.exp_avg_sq", "group0.clock"},
       {1.9673346338568405, -2.2876776990572694, 2.4629252697234874, -2.7853940539483366, 2.968056841815947,
        -3.2897323785811476, 3.4628406397587472, -3.7841963556943692}},
      {"rmsprop",
       "torch.optim.RMSprop(w, lr=1e-3)",
       make<RMSprop>(RMSpropOptions{.lr = 1e-3F}),
       rmsprop(1e-3, 0.99, 1e-8, 0, false, 0),
       {"w.square_avg"},
       {1.9384396870743046, -2.3347751387213198, 2.4284976175358106, -2.8339092130243198, 2.9439113589358721,
        -3.3453815591933997, 3.4218473613956366, -3.82755625381348}},
      {"rmsprop_momentum",
       "torch.optim.RMSprop(w, lr=1e-3, momentum=0.9, weight_decay=0.1)",
       make<RMSprop>(RMSpropOptions{.lr = 1e-3F, .momentum = 0.9F, .weight_decay = 0.1F}),
       rmsprop(1e-3, 0.99, 1e-8, 0.9, false, 0.1),
       {"w.square_avg", "w.momentum_buffer"},
       {0.6674359908269345, -0.73566565315578936, 0.89391102332730565, -1.1158727209437806, 1.5909453401519786,
        -1.5881687213031932, 1.7986484906586226, -2.0325636119198296}},
      {"rmsprop_centered",
       "torch.optim.RMSprop(w, lr=1e-3, alpha=0.9, centered=True)",
       make<RMSprop>(RMSpropOptions{.lr = 1e-3F, .alpha = 0.9, .centered = true}),
       rmsprop(1e-3, 0.9, 1e-8, 0, true, 0),
       {"w.square_avg", "w.grad_avg"},
       {1.9600505551078635, -2.3015997518586975, 2.4543063788861521, -2.7985773696159351, 2.960962855076311,
        -3.3054593034543185, 3.4516517481916176, -3.7952284617070027}},
      {"rmsprop_centered_momentum",
       "torch.optim.RMSprop(w, lr=1e-4, alpha=0.9, momentum=0.9, centered=True)",
       make<RMSprop>(RMSpropOptions{.lr = 1e-4F, .alpha = 0.9, .momentum = 0.9F, .centered = true}),
       rmsprop(1e-4, 0.9, 1e-8, 0.9, true, 0),
       {"w.square_avg", "w.momentum_buffer", "w.grad_avg"},
       {1.9631251846400677, -2.2961211279831413, 2.4568478309312396, -2.7956838601668799, 2.9650410410796271,
        -3.3003318566092434, 3.4543554611167782, -3.7928084287889532}},
      {"adagrad",
       "torch.optim.Adagrad(w)",
       make<Adagrad>(AdagradOptions{}),
       adagrad(1e-2, 0, 0, 1e-10, 0),
       {"w.sum", "group0.clock"},
       {1.9440860477403674, -2.3280230010119163, 2.4347652717463411, -2.8280933123857337, 2.9499417377943815,
        -3.3386314061322904, 3.4281938812547574, -3.8220538522725476}},
      {"adagrad_all",
       "torch.optim.Adagrad(w, lr=0.1, lr_decay=0.05, initial_accumulator_value=0.1, weight_decay=0.01)",
       make<Adagrad>(AdagradOptions{.lr = 0.1F, .lr_decay = 0.05F, .initial_accumulator = 0.1F, .weight_decay = 0.01F}),
       adagrad(0.1, 0.05, 0.1, 1e-10, 0.01),
       {"w.sum", "group0.clock"},
       {1.7279825793949724, -2.1907769032556597, 2.2355744339228454, -2.481608340395757, 2.7684773252330839,
        -3.1064078956438697, 3.158089297644652, -3.405650810042999}},
  };
  return all;
}

const std::vector<std::function<void(std::vector<NamedTensor>)>>& refused_options() {
  static const std::vector<std::function<void(std::vector<NamedTensor>)>> all = {
      [](auto p) { SGD(p, {.nesterov = true}); },
      [](auto p) { SGD(p, {.momentum = -1}); },
      [](auto p) { Adam(p, {.lr = -1}); },
      [](auto p) { Adam(p, {.beta1 = 1}); },
      [](auto p) { AdamW(p, {.beta2 = -0.1}); },
      [](auto p) { AdamW(p, {.weight_decay = -1}); },
      [](auto p) { Nadam(p, {.momentum_decay = -1}); },
      [](auto p) { RMSprop(p, {.alpha = 1}); },
      [](auto p) { Adagrad(p, {.initial_accumulator = -1}); },
  };
  return all;
}

std::vector<OptimizerCase> every_optimizer() {
  const auto kind = [](const OptimizerCase& each) { return each.name.substr(0, each.name.find('_')); };
  std::vector<OptimizerCase> last;
  for (const OptimizerCase& each : optimizer_cases())
    if (!last.empty() && kind(last.back()) == kind(each))
      last.back() = each;
    else
      last.push_back(each);
  return last;
}

std::vector<std::string> state_names(Optimizer& optimizer) {
  std::vector<std::string> names;
  for (const NamedTensor& state : optimizer.state()) names.push_back(state.name);
  return names;
}

bool counts_steps(const OptimizerCase& each) { return !each.states.empty() && each.states.back() == "group0.clock"; }

}  // namespace lockstep::optim
