module @jit_train_step attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["fsdp"=4]> {stablehlo.mesh = {axes = [{name = "fsdp", size = 4 : i64}]}}
  func.func public @main(%arg0: tensor<1024x4096xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}, %arg1: tensor<4096x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}, %arg2: tensor<1024x4096xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}, %arg3: tensor<4096x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}, %arg4: tensor<512x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}) -> (tensor<1024x4096xbf16> {jax.result_info = "result[0][0][0]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}, tensor<4096x1024xbf16> {jax.result_info = "result[0][0][1]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}, tensor<1024x4096xbf16> {jax.result_info = "result[0][1][0]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}, tensor<4096x1024xbf16> {jax.result_info = "result[0][1][1]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}, tensor<f32> {jax.result_info = "result[1]"}) {
    %0 = stablehlo.dot_general %arg4, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<512x1024xbf16>, tensor<1024x4096xbf16>) -> tensor<512x4096xbf16>
    %1 = stablehlo.tanh %0 : tensor<512x4096xbf16>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<bf16>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<bf16>) -> tensor<512x4096xbf16>
    %3 = stablehlo.subtract %2, %1 : tensor<512x4096xbf16>
    %4 = stablehlo.dot_general %1, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<512x4096xbf16>, tensor<4096x1024xbf16>) -> tensor<512x1024xbf16>
    %5 = stablehlo.add %arg4, %4 : tensor<512x1024xbf16>
    %6 = stablehlo.dot_general %5, %arg2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<512x1024xbf16>, tensor<1024x4096xbf16>) -> tensor<512x4096xbf16>
    %7 = stablehlo.tanh %6 : tensor<512x4096xbf16>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<bf16>
    %8 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<bf16>) -> tensor<512x4096xbf16>
    %9 = stablehlo.subtract %8, %7 : tensor<512x4096xbf16>
    %10 = stablehlo.dot_general %7, %arg3, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<512x4096xbf16>, tensor<4096x1024xbf16>) -> tensor<512x1024xbf16>
    %11 = stablehlo.add %5, %10 : tensor<512x1024xbf16>
    %12 = stablehlo.convert %11 : (tensor<512x1024xbf16>) -> tensor<512x1024xf32>
    %13 = chlo.square %12 : tensor<512x1024xf32> -> tensor<512x1024xf32>
    %cst_1 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<512x1024xf32>
    %15 = stablehlo.multiply %14, %12 : tensor<512x1024xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %16 = stablehlo.reduce(%13 init: %cst_2) applies stablehlo.add across dimensions = [0, 1] : (tensor<512x1024xf32>, tensor<f32>) -> tensor<f32>
    %cst_3 = stablehlo.constant dense<5.242880e+05> : tensor<f32>
    %17 = stablehlo.divide %16, %cst_3 : tensor<f32>
    %cst_4 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_5 = stablehlo.constant dense<5.242880e+05> : tensor<f32>
    %18 = stablehlo.divide %cst_4, %cst_5 : tensor<f32>
    %19 = stablehlo.broadcast_in_dim %18, dims = [] : (tensor<f32>) -> tensor<512x1024xf32>
    %20 = stablehlo.multiply %19, %15 : tensor<512x1024xf32>
    %21 = stablehlo.convert %20 : (tensor<512x1024xf32>) -> tensor<512x1024xbf16>
    %22 = stablehlo.dot_general %21, %7, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<512x1024xbf16>, tensor<512x4096xbf16>) -> tensor<1024x4096xbf16>
    %23 = stablehlo.transpose %22, dims = [1, 0] : (tensor<1024x4096xbf16>) -> tensor<4096x1024xbf16>
    %24 = stablehlo.dot_general %21, %arg3, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<512x1024xbf16>, tensor<4096x1024xbf16>) -> tensor<512x4096xbf16>
    %25 = stablehlo.multiply %24, %9 : tensor<512x4096xbf16>
    %26 = stablehlo.multiply %25, %7 : tensor<512x4096xbf16>
    %27 = stablehlo.add %25, %26 : tensor<512x4096xbf16>
    %28 = stablehlo.dot_general %27, %5, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<512x4096xbf16>, tensor<512x1024xbf16>) -> tensor<4096x1024xbf16>
    %29 = stablehlo.transpose %28, dims = [1, 0] : (tensor<4096x1024xbf16>) -> tensor<1024x4096xbf16>
    %30 = stablehlo.dot_general %27, %arg2, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<512x4096xbf16>, tensor<1024x4096xbf16>) -> tensor<512x1024xbf16>
    %31 = stablehlo.add %21, %30 : tensor<512x1024xbf16>
    %32 = stablehlo.dot_general %31, %1, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<512x1024xbf16>, tensor<512x4096xbf16>) -> tensor<1024x4096xbf16>
    %33 = stablehlo.transpose %32, dims = [1, 0] : (tensor<1024x4096xbf16>) -> tensor<4096x1024xbf16>
    %34 = stablehlo.dot_general %31, %arg1, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<512x1024xbf16>, tensor<4096x1024xbf16>) -> tensor<512x4096xbf16>
    %35 = stablehlo.multiply %34, %3 : tensor<512x4096xbf16>
    %36 = stablehlo.multiply %35, %1 : tensor<512x4096xbf16>
    %37 = stablehlo.add %35, %36 : tensor<512x4096xbf16>
    %38 = stablehlo.dot_general %37, %arg4, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<512x4096xbf16>, tensor<512x1024xbf16>) -> tensor<4096x1024xbf16>
    %39 = stablehlo.transpose %38, dims = [1, 0] : (tensor<4096x1024xbf16>) -> tensor<1024x4096xbf16>
    %cst_6 = stablehlo.constant dense<1.000980e-02> : tensor<bf16>
    %40 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<bf16>) -> tensor<1024x4096xbf16>
    %41 = stablehlo.multiply %40, %39 : tensor<1024x4096xbf16>
    %42 = stablehlo.subtract %arg0, %41 : tensor<1024x4096xbf16>
    %cst_7 = stablehlo.constant dense<1.000980e-02> : tensor<bf16>
    %43 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<bf16>) -> tensor<4096x1024xbf16>
    %44 = stablehlo.multiply %43, %33 : tensor<4096x1024xbf16>
    %45 = stablehlo.subtract %arg1, %44 : tensor<4096x1024xbf16>
    %cst_8 = stablehlo.constant dense<1.000980e-02> : tensor<bf16>
    %46 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<bf16>) -> tensor<1024x4096xbf16>
    %47 = stablehlo.multiply %46, %29 : tensor<1024x4096xbf16>
    %48 = stablehlo.subtract %arg2, %47 : tensor<1024x4096xbf16>
    %cst_9 = stablehlo.constant dense<1.000980e-02> : tensor<bf16>
    %49 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<bf16>) -> tensor<4096x1024xbf16>
    %50 = stablehlo.multiply %49, %23 : tensor<4096x1024xbf16>
    %51 = stablehlo.subtract %arg3, %50 : tensor<4096x1024xbf16>
    return %42, %45, %48, %51, %17 : tensor<1024x4096xbf16>, tensor<4096x1024xbf16>, tensor<1024x4096xbf16>, tensor<4096x1024xbf16>, tensor<f32>
  }
}
